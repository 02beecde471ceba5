//! Every transport passes the one suite; what only TCP has (frames, frozen sockets) is in
//! `hostile`.

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod shelf;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod tcp;
