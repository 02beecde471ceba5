//! Instruction sets: which one the kernels use, and the one place that turns the choice into
//! code. All of them compute the same bits; nothing here knows what is computed.

use std::{fmt, str::FromStr};

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust; runs everywhere and is what the others are compared with.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI (Cascade Lake, Zen 4 and newer).
    Avx512,
}

/// The name is none of [`Isa::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set {given:?}; use one of portable, avx2, avx512")]
pub struct ParseIsaError {
    given: String,
}

impl Isa {
    /// From the simplest to the widest.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The widest one that this machine has.
    #[must_use]
    pub fn detect() -> Self {
        let mut best = Self::Portable;
        for isa in Self::ALL {
            if isa.supported() {
                best = isa;
            }
        }
        best
    }

    /// Whether this machine can run it.
    #[must_use]
    pub fn supported(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => has_avx2() && has_avx512(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The name that [`FromStr`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Proof that this machine can run it, or `None`.
    pub(crate) fn activate(self) -> Option<Active> {
        self.supported().then_some(Active(self))
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = ParseIsaError;

    fn from_str(text: &str) -> Result<Self, ParseIsaError> {
        let known = Self::ALL.into_iter().find(|isa| isa.name() == text);
        known.ok_or_else(|| ParseIsaError { given: text.to_owned() })
    }
}

/// An instruction set that this machine was seen to have. Only [`Isa::activate`] makes one, and
/// that is what the SAFETY notes of the dispatch below rest on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active(Isa);

impl Active {
    pub(crate) fn isa(self) -> Isa {
        self.0
    }
}

/// Defines a function over [`Active`] from a body that is generic over `Lanes`: the body is
/// compiled once per instruction set, inside a function that has its target features.
macro_rules! for_each_isa {
    (
        $(#[$attr:meta])*
        $vis:vis fn $name:ident = $body:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)?
    ) => {
        $(#[$attr])*
        $vis fn $name(active: $crate::isa::Active, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::x86::Avx2Lanes>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(
                enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
            )]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::x86::Avx512Lanes>($($arg),*)
            }
            match active.isa() {
                $crate::isa::Isa::Portable => $body::<$crate::lanes::PortableLanes>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Active` exists only for features that were detected.
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(not(target_arch = "x86_64"))]
                $crate::isa::Isa::Avx2 | $crate::isa::Isa::Avx512 => {
                    $body::<$crate::lanes::PortableLanes>($($arg),*)
                }
            }
        }
    };
}
pub(crate) use for_each_isa;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_others_are_refused() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse::<Isa>(), Ok(isa));
        }
        let text = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(text.contains("sse9") && text.contains("avx2"), "{text}");
        assert!(Isa::detect().supported());
    }
}
