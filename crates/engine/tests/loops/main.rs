//! Tests of both loops: on a tiny random model always, on real weights where the model file is at
//! hand. The tiny model and the file writer are those of the `model` crate's tests.

#[cfg(test)]
mod balance;
#[cfg(test)]
mod bits;
#[cfg(test)]
mod cancel;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod pace;
#[cfg(test)]
mod refuse;
#[cfg(test)]
mod sparse_decode;
#[cfg(test)]
#[expect(dead_code, reason = "the other family is the model crate's business")]
#[path = "../../../model/tests/model/tiny.rs"]
mod tiny;
#[cfg(test)]
mod world;
#[cfg(test)]
#[expect(dead_code, reason = "reading tensors back is the model crate's business")]
#[path = "../../../model/tests/model/writer.rs"]
mod writer;
