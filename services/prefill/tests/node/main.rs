//! A real prefill node on loopback with a tiny random model, used over gRPC and the bulk transport
//! as a decode node does. Copies on memory nodes are the integration tests' business.

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod life;
#[cfg(test)]
#[expect(dead_code, reason = "the other family is the model crate's business")]
#[path = "../../../../crates/model/tests/model/tiny.rs"]
mod tiny;
#[cfg(test)]
#[expect(dead_code, reason = "reading tensors back is the model crate's business")]
#[path = "../../../../crates/model/tests/model/writer.rs"]
mod writer;
