//! Tests of the layer loop on real weights where the model file is at hand, and on tiny random
//! models of both families always.

#[cfg(test)]
mod bits;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod host;
#[cfg(test)]
mod load;
#[cfg(test)]
mod qwen;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod runner;
#[cfg(test)]
mod tiny;
#[cfg(test)]
mod truth;
#[cfg(test)]
mod writer;
