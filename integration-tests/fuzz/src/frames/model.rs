//! What the protocol's description says a server answers and a client believes.
//!
//! Written from the drawing and the layouts in `transfer`, with none of its code. Deliberately in
//! plain slices: slow and obvious.

use super::shelf::{AUTH, SLICE_BYTES, content};
use super::{FRAME_BYTES_MAX, REFS_MAX};

const START: &[u8] = b"OKVB\x01\0";
const REFS_LIMIT: u64 = 1 << 16;
const SLICE_BYTES_LIMIT: u64 = 1 << 20;

/// What comes back on one connection.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) bytes: Vec<u8>,
    /// The connection ends between two frames: all of `bytes` arrives. Otherwise it is reset, which
    /// may swallow an end of them.
    pub(super) clean: bool,
}

/// Why a connection ends in the middle.
struct Reset;

struct Frame<'a> {
    write: bool,
    count: u64,
    slice_bytes: u64,
    id: &'a [u8],
    auth: &'a [u8],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Waiting,
    Used,
}

struct Server<'a> {
    rest: &'a [u8],
    out: Vec<u8>,
    frames_left: u8,
    /// Slots 2 and 3.
    cells: [Cell; 2],
}

pub(super) fn answers(frames_left: u8, client: &[u8]) -> Answers {
    let mut hello = START.to_vec();
    hello.extend([0; 2]);
    hello.extend(REFS_MAX.to_le_bytes());
    hello.extend(u32::try_from(FRAME_BYTES_MAX / 1024).expect("it is small").to_le_bytes());
    let mut server = Server { rest: client, out: hello, frames_left, cells: [Cell::Waiting; 2] };
    while !server.rest.is_empty() {
        if server.frame().is_err() {
            return Answers { bytes: server.out, clean: false };
        }
    }
    Answers { bytes: server.out, clean: true }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn credential_problem(auth: &[u8]) -> Option<u8> {
    let (session, rest) = auth.split_at(16);
    let (epoch, secret) = rest.split_at(8);
    if session != AUTH.session.0.to_le_bytes() || secret != AUTH.secret {
        return Some(1);
    }
    (number(epoch) < AUTH.epoch.0).then_some(3)
}

impl<'a> Server<'a> {
    fn take(&mut self, bytes: u64) -> Result<&'a [u8], Reset> {
        let bytes = usize::try_from(bytes).map_err(|_| Reset)?;
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Reset)?;
        self.rest = rest;
        Ok(taken)
    }

    fn head(&mut self) -> Result<Frame<'a>, Reset> {
        let head = self.take(64)?;
        let frame = Frame {
            write: head[6] == 2,
            count: number(&head[8..12]),
            slice_bytes: number(&head[12..16]),
            id: &head[16..24],
            auth: &head[24..64],
        };
        let good = head.starts_with(START)
            && matches!(head[6], 1 | 2)
            && head[7] == 0
            && frame.count <= REFS_LIMIT
            && (1..=SLICE_BYTES_LIMIT).contains(&frame.slice_bytes);
        if good { Ok(frame) } else { Err(Reset) }
    }

    fn answer(&mut self, kind: [u8; 2], counts: [u64; 2], id: &[u8], detail: u64) {
        let begin = self.out.len();
        self.out.extend(START);
        self.out.extend(kind);
        for count in counts {
            self.out.extend(&count.to_le_bytes()[..4]);
        }
        self.out.extend(id);
        self.out.extend(&detail.to_le_bytes()[..4]);
        self.out.resize(begin + 32, 0);
    }

    fn refuse(&mut self, id: &[u8], reason: u8, detail: u64) {
        self.answer([3, reason], [0; 2], id, detail);
    }

    fn frame(&mut self) -> Result<(), Reset> {
        let frame = self.head()?;
        let bytes = frame.count * frame.slice_bytes;
        if frame.count > u64::from(REFS_MAX) || bytes > FRAME_BYTES_MAX {
            let max = u64::from(REFS_MAX).min(FRAME_BYTES_MAX / frame.slice_bytes);
            if frame.write {
                self.refuse(frame.id, 6, max);
                return Err(Reset);
            }
            self.take(frame.count * 8)?;
            self.refuse(frame.id, 6, max);
            return Ok(());
        }
        let refs = self.take(frame.count * 8)?;
        let slots: Vec<_> =
            refs.chunks(8).map(|one| (number(&one[..4]), number(&one[4..]))).collect();
        let opened = self.open(&frame, &slots);
        match (opened, frame.write) {
            (Ok(()), false) => {
                self.answer([1, 0], [frame.count, frame.slice_bytes], frame.id, 0);
                for (slot, _) in slots {
                    self.out.extend(content(u32::try_from(slot).expect("it is 0 or 1")));
                }
            }
            (Ok(()), true) => {
                self.take(bytes)?;
                self.answer([2, 0], [frame.count, 0], frame.id, 0);
            }
            (Err((reason, detail)), write) => {
                if write {
                    self.take(bytes)?;
                }
                self.refuse(frame.id, reason, detail);
            }
        }
        Ok(())
    }

    fn open(&mut self, frame: &Frame<'_>, slots: &[(u64, u64)]) -> Result<(), (u8, u64)> {
        if let Some(reason) = credential_problem(frame.auth) {
            return Err((reason, 0));
        }
        self.frames_left = self.frames_left.checked_sub(1).ok_or((2, 0))?;
        let before = self.cells;
        for (slot, generation) in slots {
            let open = match (frame.write, slot) {
                (false, 0 | 1) => *generation == 1,
                (true, 2 | 3) if *generation == 1 => {
                    let cell = if *slot == 2 { &mut self.cells[0] } else { &mut self.cells[1] };
                    std::mem::replace(cell, Cell::Used) == Cell::Waiting
                }
                _ => false,
            };
            if !open {
                self.cells = before;
                return Err((4, *slot));
            }
        }
        // Known only once the slots are open: to write, they are lost then.
        if !slots.is_empty() && frame.slice_bytes != SLICE_BYTES as u64 {
            return Err((7, SLICE_BYTES as u64));
        }
        Ok(())
    }
}

/// The places of the slices (kind 1) of a conversation in which every head of the server answers a
/// client's batch of `count` slots; none for kind 2, which confirms. `None` if a head does not.
pub(super) fn accepted_heads(said: &[u8], count: usize, kind: u8) -> Option<Vec<usize>> {
    let mut slices = Vec::new();
    if count == 0 {
        return Some(slices);
    }
    let hello = said.get(..16)?;
    if !hello.starts_with(START) {
        return None;
    }
    let fitting = number(&hello[12..16]) * 1024 / SLICE_BYTES as u64;
    let frame = usize::try_from(number(&hello[8..12]).min(fitting).clamp(1, 4096)).ok()?;
    let (mut at, mut left, mut id) = (16, count, 0);
    while left > 0 {
        let now = left.min(frame);
        left -= now;
        id += 1;
        let head = said.get(at..at + 32)?;
        let size = if kind == 1 { SLICE_BYTES as u64 } else { 0 };
        let good = head.starts_with(START)
            && head[6] == kind
            && number(&head[8..12]) == now as u64
            && (kind != 1 || number(&head[12..16]) == size)
            && number(&head[16..24]) == id;
        if !good {
            return None;
        }
        at += 32;
        if kind == 1 {
            slices.extend((0..now).map(|i| at + i * SLICE_BYTES));
            at += now * SLICE_BYTES;
        }
    }
    Some(slices)
}
