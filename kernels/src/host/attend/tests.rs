//! Attention against a naive f64 form and against itself.
