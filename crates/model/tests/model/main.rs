//! Tests of the layer loop on real weights where the model file is at hand, and on tiny random
//! models of all families always.

#[cfg(test)]
mod bits;
#[cfg(test)]
mod formats;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod host;
#[cfg(test)]
mod hub_form;
#[cfg(test)]
mod hub_load;
#[cfg(test)]
mod load;
#[cfg(test)]
mod qwen;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod runner;
#[cfg(test)]
mod small;
#[cfg(test)]
mod tiny;
#[cfg(test)]
mod truth;
#[cfg(test)]
mod writer;
