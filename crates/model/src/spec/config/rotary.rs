//! Rotary positions in config.json: `rope_parameters` as transformers 5 writes them, `rope_scaling`
//! and `rope_theta` as all before it did.
//!
//! Schemes that depend on the length of the sequence are refused, and so is every key of the
//! scaling that is not known: a scheme that is computed in part gives noise, not an error.

use kernels::{RopeScaling, RopeStyle, Yarn, YarnAttention};
use serde_json::{Map, Value};

use super::{Section, kind};
use crate::spec::{Rope, SpecError};

const REMEDY: &str = "use a model with plain, linear, llama3 or yarn rotary positions";

/// Keys that every scheme may carry; `finetuned` is a remark of the YaRN authors.
const ALL_SCHEMES: [&str; 6] =
    ["type", "rope_type", "rope_theta", "factor", "partial_rotary_factor", "finetuned"];

pub(super) fn rope(
    config: &Section<'_>,
    context: u32,
    style: RopeStyle,
) -> Result<Rope, SpecError> {
    let none = Map::new();
    let section = scaling_section(config, &none)?;
    let theta = match section.get("rope_theta") {
        Some(_) => section.positive("rope_theta", 0.0)?,
        None => config.positive("rope_theta", 10_000.0)?,
    };
    for section in [&section, config] {
        let name = "partial_rotary_factor";
        if let Some(part) = section.float_opt(name)?.filter(|part| *part != 1.0) {
            let remedy = "use a model that rotates whole heads";
            return Err(section.unsupported(name, part, remedy));
        }
    }
    Ok(Rope { theta, style, scaling: scaling(config, &section, context)? })
}

/// The object that describes the scaling; an older one comes first, as in transformers.
fn scaling_section<'a>(
    config: &Section<'a>,
    none: &'a Map<String, Value>,
) -> Result<Section<'a>, SpecError> {
    for name in ["rope_scaling", "rope_parameters"] {
        match config.json.get(name) {
            Some(Value::Object(json)) if !json.is_empty() => {
                return Ok(Section { path: format!("{}.", config.key(name)), json });
            }
            Some(Value::Object(_) | Value::Null) | None => {}
            Some(other) => return Err(config.value(name, kind(other), "an object".to_owned())),
        }
    }
    Ok(Section { path: config.path.clone(), json: none })
}

fn scaling(
    config: &Section<'_>,
    section: &Section<'_>,
    context: u32,
) -> Result<RopeScaling, SpecError> {
    let key = if section.get("rope_type").is_some() { "rope_type" } else { "type" };
    let scheme = section.text_opt(key)?.unwrap_or("default");
    let original = || original_context(config, section, context);
    match scheme {
        "default" => {
            only(section, &[])?;
            // A factor without a scheme has no meaning that everybody shares.
            match section.float_opt("factor")?.filter(|factor| *factor != 1.0) {
                Some(factor) => {
                    let remedy = "name the scheme as rope_type";
                    Err(section.unsupported("factor", format!("{factor} without one"), remedy))
                }
                None => Ok(RopeScaling::None),
            }
        }
        "linear" => {
            only(section, &[])?;
            Ok(RopeScaling::Linear { factor: stretch(section)? })
        }
        "llama3" => {
            let more = ["low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];
            only(section, &more)?;
            Ok(RopeScaling::Llama3 {
                factor: stretch(section)?,
                low_freq_factor: required(section, "low_freq_factor")?,
                high_freq_factor: required(section, "high_freq_factor")?,
                original_context: original()?,
            })
        }
        "yarn" => yarn(section, context, original()?),
        other => Err(section.unsupported(key, format!("{other:?}"), REMEDY)),
    }
}

fn yarn(
    section: &Section<'_>,
    context: u32,
    original_context: u32,
) -> Result<RopeScaling, SpecError> {
    only(
        section,
        &[
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
    )?;
    // A zero counts as not given, as in transformers.
    let given = |name: &str| -> Result<Option<f64>, SpecError> {
        Ok(section.float_opt(name)?.filter(|number| *number != 0.0))
    };
    let scales = given("mscale")?.zip(given("mscale_all_dim")?);
    let attention = match (section.float_opt("attention_factor")?, scales) {
        (Some(factor), _) => YarnAttention::Given(factor),
        (None, Some((mscale, mscale_all_dim))) => YarnAttention::Scales { mscale, mscale_all_dim },
        (None, None) => YarnAttention::Paper,
    };
    Ok(RopeScaling::Yarn(Yarn {
        factor: match section.get("factor") {
            Some(_) => stretch(section)?,
            None => f64::from(context) / f64::from(original_context),
        },
        original_context,
        beta_fast: given("beta_fast")?.unwrap_or(32.0),
        beta_slow: given("beta_slow")?.unwrap_or(1.0),
        truncate: section.flag("truncate", true)?,
        attention,
    }))
}

/// Positions of the first training: outside the scaling where a model keeps it there.
fn original_context(
    config: &Section<'_>,
    section: &Section<'_>,
    context: u32,
) -> Result<u32, SpecError> {
    let name = "original_max_position_embeddings";
    for section in [config, section] {
        if section.get(name).is_some() {
            return section.at_least_one(name);
        }
    }
    Ok(context)
}

fn stretch(section: &Section<'_>) -> Result<f64, SpecError> {
    let factor = required(section, "factor")?;
    match factor >= 1.0 {
        true => Ok(factor),
        false => Err(section.value("factor", factor, "a number of at least 1".to_owned())),
    }
}

fn required(section: &Section<'_>, name: &str) -> Result<f64, SpecError> {
    section.float_opt(name)?.ok_or_else(|| SpecError::Missing {
        key: section.key(name),
        expected: "a number".to_owned(),
    })
}

/// Refuses keys that are neither common nor of this scheme.
fn only(section: &Section<'_>, more: &[&str]) -> Result<(), SpecError> {
    let known = |name: &str| ALL_SCHEMES.contains(&name) || more.contains(&name);
    let unknown = section.json.iter().find(|(name, value)| !value.is_null() && !known(name));
    match unknown {
        Some((name, value)) => Err(section.unsupported(name, kind(value), REMEDY)),
        None => Ok(()),
    }
}
