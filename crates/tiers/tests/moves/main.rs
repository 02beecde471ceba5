//! Moves between real servers over loopback: bulk TCP, gRPC, blocks in memory behind both.

#[cfg(test)]
mod copy;
#[cfg(test)]
mod fetch;
#[cfg(test)]
mod home;
#[cfg(test)]
mod keeper;
#[cfg(test)]
mod room;
#[cfg(test)]
mod samples;
