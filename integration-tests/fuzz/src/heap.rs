//! A bound on the heap of one run: beyond it an allocation fails, which aborts with its size.
//!
//! The whole process shares the bound, so that one target runs at a time. Deliberately no
//! sanitizer, which stable Rust does not have: safe code needs none to be bounded.

use std::alloc::System;

use cap::Cap;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// While it lives, the process may take so much more than it had.
pub(crate) struct Bounded;

impl Bounded {
    pub(crate) fn by(bytes: usize) -> Self {
        let limit = HEAP.allocated().saturating_add(bytes);
        HEAP.set_limit(limit).expect("a limit above what is allocated is accepted");
        Self
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        HEAP.set_limit(usize::MAX).expect("raising a limit is accepted");
    }
}
