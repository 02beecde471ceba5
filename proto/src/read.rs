//! Reading single fields: each helper checks one rule and names the field.

use std::str::FromStr;

use bytes::Bytes;
use ids::{
    BlockHash, Epoch, Incarnation, ModelDigest, PolicyDigest, SessionId, ShardId, Span, Tenant,
};

use crate::InvalidMessage;
use crate::limits;

type Read<T> = Result<T, InvalidMessage>;

/// A message field that must be there.
pub(crate) fn message<W, D>(field: &str, value: Option<W>) -> Read<D>
where
    D: TryFrom<W, Error = InvalidMessage>,
{
    D::try_from(present(field, value)?).map_err(|invalid| invalid.within(field))
}

/// A message field that may be absent.
pub(crate) fn optional<W, D>(field: &str, value: Option<W>) -> Read<Option<D>>
where
    D: TryFrom<W, Error = InvalidMessage>,
{
    value.map(|value| D::try_from(value).map_err(|invalid| invalid.within(field))).transpose()
}

/// A field (or one case of a `oneof`) that must be there.
pub(crate) fn present<W>(field: &str, value: Option<W>) -> Read<W> {
    value.ok_or_else(|| InvalidMessage::new(field, "missing"))
}

/// A list of messages of bounded length.
pub(crate) fn list<W, D>(field: &str, values: Vec<W>, len_max: usize) -> Read<Vec<D>>
where
    D: TryFrom<W, Error = InvalidMessage>,
{
    bounded(field, values.len(), len_max)?;
    let read =
        |(index, value)| D::try_from(value).map_err(|e: InvalidMessage| e.within_at(field, index));
    values.into_iter().enumerate().map(read).collect()
}

/// The length of a list.
pub(crate) fn bounded(field: &str, len: usize, len_max: usize) -> Read<()> {
    if len > len_max {
        return Err(InvalidMessage::new(
            field,
            format!("{len} entries, at most {len_max} allowed"),
        ));
    }
    Ok(())
}

/// Bytes of a fixed length.
pub(crate) fn digest<const N: usize>(field: &str, bytes: &Bytes) -> Read<[u8; N]> {
    <[u8; N]>::try_from(bytes.as_ref())
        .map_err(|_| InvalidMessage::new(field, format!("{} bytes, must be {N}", bytes.len())))
}

pub(crate) fn session(field: &str, bytes: &Bytes) -> Read<SessionId> {
    digest(field, bytes).map(|bytes| SessionId(u128::from_be_bytes(bytes)))
}

pub(crate) fn session_bytes(session: SessionId) -> Bytes {
    Bytes::copy_from_slice(&session.0.to_be_bytes())
}

pub(crate) fn model(field: &str, bytes: &Bytes) -> Read<ModelDigest> {
    digest(field, bytes).map(ModelDigest)
}

pub(crate) fn policy(field: &str, bytes: &Bytes) -> Read<PolicyDigest> {
    digest(field, bytes).map(PolicyDigest)
}

/// Hashes of the full blocks of `tokens` tokens: exactly one per 16.
pub(crate) fn hashes(field: &str, values: &[Bytes], tokens: usize) -> Read<Vec<BlockHash>> {
    let full = tokens / ids::BLOCK_TOKENS;
    if values.len() != full {
        let reason = format!("{} hashes, must be {full} for {tokens} tokens", values.len());
        return Err(InvalidMessage::new(field, reason));
    }
    let read = |(index, bytes)| digest(&format!("{field}[{index}]"), bytes).map(BlockHash);
    values.iter().enumerate().map(read).collect()
}

/// An epoch; they start at 1, so that a field left out is seen.
pub(crate) fn epoch(field: &str, value: u64) -> Read<Epoch> {
    within(field, value, 1, u64::MAX).map(Epoch)
}

/// An incarnation; they start at 1, so that a field left out is seen.
pub(crate) fn incarnation(field: &str, value: u64) -> Read<Incarnation> {
    within(field, value, 1, u64::MAX).map(Incarnation)
}

pub(crate) fn shard(field: &str, value: u32) -> Read<ShardId> {
    narrow(field, value).map(ShardId)
}

/// A number that must fit its narrower domain type.
pub(crate) fn narrow<W: Copy + std::fmt::Display, D: TryFrom<W>>(field: &str, value: W) -> Read<D> {
    D::try_from(value).map_err(|_| InvalidMessage::new(field, format!("{value} is out of range")))
}

/// A number in an inclusive range.
pub(crate) fn within<T>(field: &str, value: T, min: T, max: T) -> Read<T>
where
    T: PartialOrd + std::fmt::Display,
{
    if value >= min && value <= max {
        return Ok(value);
    }
    Err(InvalidMessage::new(field, format!("{value} is not within {min} to {max}")))
}

/// A duration of at least 1 ms.
pub(crate) fn millis(field: &str, value: u64, max: u64) -> Read<Span> {
    within(field, value, 1, max).map(Span::from_millis)
}

/// Whole milliseconds, rounded up so that no time becomes none.
pub(crate) fn as_millis(span: Span) -> u64 {
    span.0.div_ceil(1_000_000)
}

/// A name with a grammar of its own.
pub(crate) fn name<T>(field: &str, text: &str) -> Read<T>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| InvalidMessage::new(field, error.to_string()))
}

/// Text of bounded length.
pub(crate) fn text(field: &str, text: String, bytes_max: usize) -> Read<String> {
    if text.len() > bytes_max {
        let reason = format!("{} bytes, at most {bytes_max} allowed", text.len());
        return Err(InvalidMessage::new(field, reason));
    }
    Ok(text)
}

pub(crate) fn tenant(field: &str, name: String) -> Read<Tenant> {
    text(field, name, limits::TENANT_BYTES_MAX).map(|name| Tenant(name.into()))
}

/// `host:port` with a port above 0.
pub(crate) fn address(field: &str, address: String) -> Read<String> {
    let address = text(field, address, limits::ADDRESS_BYTES_MAX)?;
    let ok = address.rsplit_once(':').is_some_and(|(host, port)| {
        let host_ok =
            !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic() && c != '/' && c != '@');
        host_ok && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if !ok {
        return Err(InvalidMessage::new(field, format!("{address:?} is not host:port")));
    }
    Ok(address)
}

/// An address that some roles do not have; empty then.
pub(crate) fn optional_address(field: &str, value: String) -> Read<String> {
    if value.is_empty() { Ok(value) } else { address(field, value) }
}
