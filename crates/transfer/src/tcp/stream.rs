//! Reading and writing whole buffers and batches of slots on a socket.
//!
//! Hot path. Nothing here outlives its call: the kernel touches a slot only inside a system call,
//! so dropping one of these futures ends all access to the slots at once.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::slab::SlotMut;

/// Slices of one `readv` or `writev`. Linux takes 1,024; a socket buffer holds about 64 of 4 KiB,
/// and filling in the unused rest costs time.
const VECTOR: usize = 128;

/// Sets what both sides want of a socket.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}

/// Makes the coming close immediate: what is unsent is dropped and the peer sees a reset.
pub(super) fn close_by_force(stream: &TcpStream) {
    // It fails only on a socket that is gone already, which is what is wanted.
    drop(SockRef::from(stream).set_linger(Some(Duration::ZERO)));
}

/// Waits for bytes and takes what is there, at most `buffer`; 0 when the peer closed.
pub(super) async fn read_some(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.try_read(buffer) {
            Ok(n) => return Ok(n),
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Fills `buffer`.
pub(super) async fn read_all(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < buffer.len() {
        match read_some(stream, &mut buffer[at..]).await? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => at += n,
        }
    }
    Ok(())
}

/// Reads and drops `bytes` bytes, holding one small buffer.
pub(super) async fn discard(stream: &TcpStream, mut bytes: u64) -> io::Result<()> {
    let mut scratch = vec![0; 64 << 10];
    while bytes > 0 {
        let part = usize::try_from(bytes).map_or(scratch.len(), |bytes| bytes.min(scratch.len()));
        read_all(stream, &mut scratch[..part]).await?;
        bytes -= part as u64;
        tokio::task::consume_budget().await;
    }
    Ok(())
}

/// Position in a list of parts: how many are done, and how much of the next one.
#[derive(Clone, Copy, Default)]
struct Cursor {
    part: usize,
    offset: usize,
}

impl Cursor {
    /// Moves on by `n` bytes over parts of the given lengths.
    fn advance(&mut self, mut n: usize, len: impl Fn(usize) -> usize) {
        while n > 0 {
            let left = len(self.part) - self.offset;
            if n < left {
                self.offset += n;
                return;
            }
            n -= left;
            self.part += 1;
            self.offset = 0;
        }
    }
}

/// Fills every slot of `landing` in order.
pub(super) async fn read_slots(stream: &TcpStream, landing: &mut [SlotMut]) -> io::Result<()> {
    let mut at = Cursor::default();
    while at.part < landing.len() {
        let got = {
            let parts = landing[at.part..].iter_mut().take(VECTOR).enumerate();
            let skip = |i: usize| if i == 0 { at.offset } else { 0 };
            let mut vector: Vec<IoSliceMut<'_>> =
                parts.map(|(i, slot)| IoSliceMut::new(&mut slot[skip(i)..])).collect();
            stream.try_read_vectored(&mut vector)
        };
        match got {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                at.advance(n, |part| landing[part].len());
                tokio::task::consume_budget().await;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes every part in order. Parts may be empty.
pub(super) async fn write_parts(stream: &TcpStream, parts: &[&[u8]]) -> io::Result<()> {
    let mut at = Cursor::default();
    loop {
        while parts.get(at.part).is_some_and(|part| part.len() == at.offset) {
            at = Cursor { part: at.part + 1, offset: 0 };
        }
        if at.part == parts.len() {
            return Ok(());
        }
        let put = {
            let next = parts[at.part..].iter().take(VECTOR).enumerate();
            let skip = |i: usize| if i == 0 { at.offset } else { 0 };
            let vector: Vec<IoSlice<'_>> =
                next.map(|(i, part)| IoSlice::new(&part[skip(i)..])).collect();
            stream.try_write_vectored(&vector)
        };
        match put {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => {
                at.advance(n, |part| parts[part].len());
                tokio::task::consume_budget().await;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
