//! Numbers and lists as little-endian bytes. Knows no state.

use super::InvalidSnapshot;

type Read<T> = Result<T, InvalidSnapshot>;

/// Appends.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn f32(&mut self, value: f32) {
        self.u32(value.to_bits());
    }

    pub(super) fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    /// Lengths fit: a list has at most one entry per block, and blocks are counted in 32 bits.
    pub(super) fn list(&mut self, values: &[u32]) {
        self.u32(values.len() as u32);
        values.iter().for_each(|value| self.u32(*value));
    }

    pub(super) fn floats(&mut self, values: &[f32]) {
        self.u32(values.len() as u32);
        values.iter().for_each(|value| self.f32(*value));
    }
}

/// Takes from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, count: usize, what: &'static str) -> Read<&'a [u8]> {
        let (front, rest) =
            self.0.split_at_checked(count).ok_or(InvalidSnapshot::Short { what })?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N, what)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Read<u8> {
        self.array(what).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Read<u16> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Read<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Read<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number that is finite and not below 0; -0 is refused, its bits are not ordered.
    pub(super) fn f32(&mut self, what: &'static str) -> Read<f32> {
        let bits = self.u32(what)?;
        let fine = bits <= f32::MAX.to_bits();
        if fine { Ok(f32::from_bits(bits)) } else { Err(InvalidSnapshot::State { what }) }
    }

    /// As [`Reader::f32`].
    pub(super) fn f64(&mut self, what: &'static str) -> Read<f64> {
        let bits = self.u64(what)?;
        let fine = bits <= f64::MAX.to_bits();
        if fine { Ok(f64::from_bits(bits)) } else { Err(InvalidSnapshot::State { what }) }
    }

    pub(super) fn list(&mut self, what: &'static str) -> Read<Vec<u32>> {
        let count = self.count(what)?;
        (0..count).map(|_| self.u32(what)).collect()
    }

    pub(super) fn floats(&mut self, what: &'static str) -> Read<Vec<f32>> {
        let count = self.count(what)?;
        (0..count).map(|_| self.f32(what)).collect()
    }

    /// A length whose entries of 4 bytes are all there.
    fn count(&mut self, what: &'static str) -> Read<usize> {
        let count = self.u32(what)? as usize;
        if count > self.0.len() / 4 { Err(InvalidSnapshot::Short { what }) } else { Ok(count) }
    }
}
