//! The frames of the bulk protocol as bytes: headers in fixed little-endian layout.
//!
//! Parsing only: no sockets, no buffers beyond the arrays given. Every length is checked here
//! before anybody allocates or reads for it (case 53).
//!
//! ```text
//! server, once per connection:   Hello
//! client:  Request{read,  n}  n * SlotRef
//! server:  Answer{read, n}    n * slice      | Answer{refused}
//! client:  Request{write, n}  n * SlotRef    n * slice
//! server:  Answer{written, n}                | Answer{refused}
//! ```

use ids::{Epoch, SessionId};

use crate::gate::{Credential, Refusal, SlotRef};

#[cfg(test)]
mod tests;

/// More references than this in one frame are a protocol error, whatever is configured.
pub const REFS_LIMIT: u32 = 1 << 16;

/// A larger slice is a protocol error, whatever is configured.
pub const SLICE_BYTES_LIMIT: u32 = 1 << 20;

pub(crate) const MAGIC: [u8; 4] = *b"OKVB";
pub(crate) const VERSION: u16 = 1;
pub(crate) const HELLO_BYTES: usize = 16;
pub(crate) const REQUEST_BYTES: usize = 64;
pub(crate) const ANSWER_BYTES: usize = 32;
pub(crate) const REF_BYTES: usize = 8;

/// Bytes that are no frame of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The peer speaks something else.
    #[error("magic {0:02x?} is not that of the bulk protocol")]
    Magic([u8; 4]),
    /// The peer speaks another version.
    #[error("bulk protocol version {theirs}, this build speaks {VERSION}; upgrade the older side")]
    Version {
        /// What the peer sent.
        theirs: u16,
    },
    /// No such kind of frame.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// More references than any frame may have.
    #[error("frame lists {0} slots, the limit is {REFS_LIMIT}")]
    Refs(u32),
    /// A slice of no bytes or more than any may have.
    #[error("frame has slices of {0} bytes, the limit is {SLICE_BYTES_LIMIT}")]
    SliceBytes(u32),
    /// No such reason of refusal.
    #[error("unknown refusal {0}")]
    Refusal(u8),
    /// Bytes that must be zero are not.
    #[error("reserved bytes of a frame are not zero")]
    Reserved,
    /// The answer is not to the question.
    #[error("answer does not match its request")]
    Mismatch,
}

/// What a server says when a connection opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Most references that it takes in one frame.
    pub refs_max: u32,
    /// Most slice bytes of one frame, in units of KiB.
    pub frame_kib_max: u32,
}

/// What a client wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write,
}

/// Head of a client's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub action: Action,
    /// References that follow.
    pub count: u32,
    pub slice_bytes: u32,
    /// Echoed in the answer.
    pub id: u64,
    pub auth: Credential,
}

/// Head of a server's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub verdict: Verdict,
    /// The id of the request.
    pub id: u64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// `count` slices follow.
    Slices { count: u32, slice_bytes: u32 },
    /// `count` slices landed.
    Landed { count: u32 },
    /// Nothing was done and nothing follows.
    Refused(Refusal),
}

/// Writes fields one behind the other into a fixed array; what is left stays zero.
struct Writer<const N: usize> {
    out: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    /// Begins a frame with magic and version.
    fn frame() -> Self {
        let writer = Self { out: [0; N], at: 0 };
        writer.put(MAGIC).put(VERSION.to_le_bytes())
    }

    fn put<const M: usize>(mut self, field: [u8; M]) -> Self {
        self.out[self.at..self.at + M].copy_from_slice(&field);
        self.at += M;
        self
    }
}

/// Reads fields one behind the other from a fixed array.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks magic and version.
    fn frame(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Self { rest: bytes };
        let magic = reader.take();
        if magic != MAGIC {
            return Err(Malformed::Magic(magic));
        }
        let theirs = reader.u16();
        if theirs != VERSION {
            return Err(Malformed::Version { theirs });
        }
        Ok(reader)
    }

    fn take<const M: usize>(&mut self) -> [u8; M] {
        let (field, rest) = self.rest.split_first_chunk().expect("layouts fit their arrays");
        self.rest = rest;
        *field
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// What is left must be zero, so that a later version can give it a meaning.
    fn end(self) -> Result<(), Malformed> {
        if self.rest.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(Malformed::Reserved) }
    }
}

fn checked_count(count: u32) -> Result<u32, Malformed> {
    if count > REFS_LIMIT {
        return Err(Malformed::Refs(count));
    }
    Ok(count)
}

fn checked_slice(bytes: u32) -> Result<u32, Malformed> {
    if bytes == 0 || bytes > SLICE_BYTES_LIMIT {
        return Err(Malformed::SliceBytes(bytes));
    }
    Ok(bytes)
}

impl Hello {
    pub(crate) fn encode(self) -> [u8; HELLO_BYTES] {
        Writer::frame()
            .put([0; 2])
            .put(self.refs_max.to_le_bytes())
            .put(self.frame_kib_max.to_le_bytes())
            .out
    }

    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Malformed> {
        let mut reader = Reader::frame(bytes)?;
        if reader.u16() != 0 {
            return Err(Malformed::Reserved);
        }
        let hello = Self { refs_max: reader.u32(), frame_kib_max: reader.u32() };
        reader.end()?;
        Ok(hello)
    }
}

impl Request {
    pub(crate) fn encode(self) -> [u8; REQUEST_BYTES] {
        let kind = match self.action {
            Action::Read => 1u8,
            Action::Write => 2,
        };
        Writer::frame()
            .put([kind, 0])
            .put(self.count.to_le_bytes())
            .put(self.slice_bytes.to_le_bytes())
            .put(self.id.to_le_bytes())
            .put(self.auth.session.0.to_le_bytes())
            .put(self.auth.epoch.0.to_le_bytes())
            .put(self.auth.secret)
            .out
    }

    pub(crate) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Malformed> {
        let mut reader = Reader::frame(bytes)?;
        let action = match reader.u8() {
            1 => Action::Read,
            2 => Action::Write,
            other => return Err(Malformed::Kind(other)),
        };
        if reader.u8() != 0 {
            return Err(Malformed::Reserved);
        }
        let request = Self {
            action,
            count: checked_count(reader.u32())?,
            slice_bytes: checked_slice(reader.u32())?,
            id: reader.u64(),
            auth: Credential {
                session: SessionId(u128::from_le_bytes(reader.take())),
                epoch: Epoch(reader.u64()),
                secret: reader.take(),
            },
        };
        reader.end()?;
        Ok(request)
    }

    /// Bytes of all slices of the frame; cannot overflow after the checks of `decode`.
    pub(crate) fn slices_bytes(&self) -> u64 {
        u64::from(self.count) * u64::from(self.slice_bytes)
    }
}

impl Answer {
    pub(crate) fn encode(self) -> [u8; ANSWER_BYTES] {
        let (kind, reason, count, slice_bytes, detail) = match self.verdict {
            Verdict::Slices { count, slice_bytes } => (1u8, 0, count, slice_bytes, 0),
            Verdict::Landed { count } => (2, 0, count, 0, 0),
            Verdict::Refused(refusal) => {
                let (reason, detail) = refusal_bytes(refusal);
                (3, reason, 0, 0, detail)
            }
        };
        Writer::frame()
            .put([kind, reason])
            .put(count.to_le_bytes())
            .put(slice_bytes.to_le_bytes())
            .put(self.id.to_le_bytes())
            .put(detail.to_le_bytes())
            .out
    }

    pub(crate) fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, Malformed> {
        let mut reader = Reader::frame(bytes)?;
        let (kind, reason) = (reader.u8(), reader.u8());
        let (count, slice_bytes) = (reader.u32(), reader.u32());
        let id = reader.u64();
        let detail = reader.u32();
        reader.end()?;
        let verdict = match kind {
            1 => Verdict::Slices {
                count: checked_count(count)?,
                slice_bytes: checked_slice(slice_bytes)?,
            },
            2 => Verdict::Landed { count: checked_count(count)? },
            3 => Verdict::Refused(refusal_from(reason, detail)?),
            other => return Err(Malformed::Kind(other)),
        };
        Ok(Self { verdict, id })
    }
}

fn refusal_bytes(refusal: Refusal) -> (u8, u32) {
    match refusal {
        Refusal::NoGrant => (1, 0),
        Refusal::Expired => (2, 0),
        Refusal::StaleEpoch => (3, 0),
        Refusal::NotYours(slot) => (4, slot),
        Refusal::StaleGeneration(slot) => (5, slot),
        Refusal::TooMany { max } => (6, max),
        Refusal::SliceBytes { bytes } => (7, bytes),
    }
}

fn refusal_from(reason: u8, detail: u32) -> Result<Refusal, Malformed> {
    Ok(match reason {
        1 => Refusal::NoGrant,
        2 => Refusal::Expired,
        3 => Refusal::StaleEpoch,
        4 => Refusal::NotYours(detail),
        5 => Refusal::StaleGeneration(detail),
        6 => Refusal::TooMany { max: detail },
        7 => Refusal::SliceBytes { bytes: detail },
        other => return Err(Malformed::Refusal(other)),
    })
}

/// The references of a frame as bytes.
pub(crate) fn encode_refs(refs: &[SlotRef], out: &mut Vec<u8>) {
    out.reserve(refs.len() * REF_BYTES);
    for slot_ref in refs {
        out.extend_from_slice(&slot_ref.slot.to_le_bytes());
        out.extend_from_slice(&slot_ref.generation.to_le_bytes());
    }
}

/// References from their bytes; a rest of less than one reference is ignored.
pub(crate) fn decode_refs(bytes: &[u8]) -> Vec<SlotRef> {
    let one = |mut reader: Reader<'_>| SlotRef { slot: reader.u32(), generation: reader.u32() };
    let chunks = bytes.chunks_exact(REF_BYTES);
    chunks.map(|rest| one(Reader { rest })).collect()
}
