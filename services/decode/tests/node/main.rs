//! A real decode node on loopback with a tiny random model, whose prefill node is absent, frozen or
//! refuses. Whole sessions are the integration tests' business.

#[cfg(test)]
mod ends;
#[cfg(test)]
#[expect(dead_code, reason = "the other family is the model crate's business")]
#[path = "../../../../crates/model/tests/model/tiny.rs"]
mod tiny;
#[cfg(test)]
#[expect(dead_code, reason = "reading tensors back is the model crate's business")]
#[path = "../../../../crates/model/tests/model/writer.rs"]
mod writer;
