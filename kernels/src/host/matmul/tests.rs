//! Matmul against references and against itself.
