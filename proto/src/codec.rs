//! Messages from bytes, with a bound on the memory that they take once decoded.
//!
//! Two bytes on the wire can be an element of a list that takes hundreds in memory, so that a
//! message within its size limit could take gigabytes before any rule is checked. The bytes are
//! walked first, by the shape of the message, and what they ask for is added up. Deliberately no
//! rule about content: that is the conversions' work.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use crate::limits::MESSAGE_HEAP_BYTES_MAX;

/// What the elements of a message take in memory. Written by build.rs for every message.
#[derive(Debug)]
pub struct Shape {
    /// Of the message itself.
    bytes: usize,
    /// Fields that are messages, by number.
    messages: &'static [(u32, &'static Shape)],
    /// Lists of numbers, by number: bytes in memory for each byte on the wire, at most.
    lists: &'static [(u32, usize)],
}

/// A message whose shape is known.
pub trait Shaped: Message + Default {
    /// Its shape.
    const SHAPE: &'static Shape;
}

/// Why bytes were not decoded.
#[derive(Debug, thiserror::Error)]
pub enum Undecodable {
    /// They are no such message.
    #[error("the bytes are no message of this kind")]
    Malformed(#[from] DecodeError),
    /// The message has too many elements.
    #[error("the message would take more than {MESSAGE_HEAP_BYTES_MAX} bytes of memory")]
    TooLarge,
}

impl From<Undecodable> for Status {
    /// As tonic answers a message that is damaged or longer than allowed.
    fn from(error: Undecodable) -> Self {
        match error {
            Undecodable::Malformed(source) => Self::internal(source.to_string()),
            Undecodable::TooLarge => Self::out_of_range(error.to_string()),
        }
    }
}

/// Decodes a message that takes a bounded amount of memory.
///
/// # Errors
/// [`Undecodable`]; nothing of the message was kept.
pub fn decode<W: Shaped>(bytes: Bytes) -> Result<W, Undecodable> {
    let mut left = MESSAGE_HEAP_BYTES_MAX;
    if walk(W::SHAPE, &bytes, &mut left).is_none() {
        return Err(Undecodable::TooLarge);
    }
    Ok(W::decode(bytes)?)
}

/// What a text or a list costs beside its content: `Bytes` has 32, `String` and `Vec` 24.
const HANDLE_BYTES: usize = 32;

/// Takes what a message needs from `left`; `None` when that is not enough. Ends early, with what
/// was counted so far, where the decoder will find an error.
fn walk(shape: &Shape, mut bytes: &[u8], left: &mut usize) -> Option<()> {
    take(left, shape.bytes)?;
    while bytes.has_remaining() {
        let Ok((field, wire)) = decode_key(&mut bytes) else {
            return Some(());
        };
        if wire != WireType::LengthDelimited {
            // At most one number, or an unknown group, of which nothing is kept.
            take(left, size_of::<u64>())?;
            if skip_field(wire, field, &mut bytes, DecodeContext::default()).is_err() {
                return Some(());
            }
            continue;
        }
        let len = decode_varint(&mut bytes).ok().and_then(|len| usize::try_from(len).ok());
        let Some((content, rest)) = len.and_then(|len| bytes.split_at_checked(len)) else {
            return Some(());
        };
        bytes = rest;
        match shape.messages.iter().find(|(number, _)| *number == field) {
            Some((_, inner)) => walk(inner, content, left)?,
            None => {
                let list = shape.lists.iter().find(|(number, _)| *number == field);
                let factor = list.map_or(1, |(_, factor)| *factor);
                take(left, content.len().saturating_mul(factor).saturating_add(HANDLE_BYTES))?;
            }
        }
    }
    Some(())
}

fn take(left: &mut usize, bytes: usize) -> Option<()> {
    *left = left.checked_sub(bytes)?;
    Some(())
}

/// The codec of all services: as prost's, with the bound.
#[derive(Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Shaped + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

/// Decodes with the bound.
#[derive(Debug)]
pub struct BoundedDecoder<U>(PhantomData<U>);

impl<U: Shaped> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // One message, whole: a view of the buffer, not a copy.
        let bytes = buf.copy_to_bytes(buf.remaining());
        Ok(Some(decode(bytes)?))
    }
}

mod shapes {
    use super::{Shape, Shaped};
    use crate::v1::*;

    include!(concat!(env!("OUT_DIR"), "/shapes.rs"));
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{Undecodable, decode};
    use crate::limits::{MESSAGE_BYTES_MAX, MESSAGE_HEAP_BYTES_MAX};
    use crate::v1;

    /// P4: without the bound each of these takes gigabytes. Method: empty elements of a list, two
    /// bytes each, up to the limit of a message.
    #[test]
    fn p4_elements_of_two_bytes_cannot_take_hundreds_each() {
        let full = |key: u8| Bytes::from([key, 0].repeat(MESSAGE_BYTES_MAX / 2));
        let refused = [
            decode::<v1::PlaceRequest>(full(0x12)).err(),
            decode::<v1::PlaceResponse>(full(0x12)).err(),
            decode::<v1::NodesResponse>(full(0x0a)).err(),
            decode::<v1::AdmitRequest>(full(0x32)).err(),
            decode::<v1::SealedBlocks>(full(0x0a)).err(),
        ];
        for error in refused {
            assert!(matches!(error, Some(Undecodable::TooLarge)), "{error:?}");
        }
        // Elements of elements are counted too.
        let home = [0x22, 0].repeat(100_000);
        let mut plan = Vec::new();
        for _ in 0..300 {
            plan.push(0x5a);
            prost::encoding::encode_varint(home.len() as u64, &mut plan);
            plan.extend(&home);
        }
        assert!(plan.len() < MESSAGE_BYTES_MAX);
        assert!(matches!(decode::<v1::Plan>(plan.into()), Err(Undecodable::TooLarge)));
    }

    /// The longest prompt and the fullest batch of blocks that the limits allow are decoded.
    #[test]
    fn the_largest_honest_messages_are_within_the_bound() {
        use prost::Message;

        let tokens = crate::limits::TOKENS_PER_PROMPT_MAX;
        let prompt = v1::Prompt {
            tokens: vec![300_000; tokens],
            block_hashes: vec![Bytes::from_static(&[7; 32]); tokens / ids::BLOCK_TOKENS],
            ..v1::Prompt::default()
        };
        let bytes = prompt.encode_to_vec();
        assert_eq!(decode::<v1::Prompt>(bytes.into()).unwrap(), prompt);
        let receipt = v1::BlockReceipt { checksums: vec![1; 1008], ..Default::default() };
        let place = v1::PlaceRequest { receipts: vec![receipt; 4096], ..Default::default() };
        let bytes = place.encode_to_vec();
        assert!(bytes.len() < MESSAGE_BYTES_MAX && MESSAGE_BYTES_MAX < MESSAGE_HEAP_BYTES_MAX);
        assert_eq!(decode::<v1::PlaceRequest>(bytes.into()).unwrap(), place);
    }
}
