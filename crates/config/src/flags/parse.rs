//! pflag's grammar: `--name=value`, `--name value`, `-v 2`, bare booleans, `_` for `-`.

use super::{Deprecation, Flag, all, find};
use units::strconv::quote;

/// One use of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagUse {
    /// The flag.
    pub flag: &'static Flag,
    /// The value as given (`true` for a bare boolean).
    pub value: String,
}

/// A command line taken apart, up to the first fault.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedArgs {
    /// Flags in the order they were given.
    pub uses: Vec<FlagUse>,
    /// Arguments that are no flags.
    pub positional: Vec<String>,
    /// What is wrong with the next argument, if the line could not be taken apart.
    pub fault: Option<String>,
    /// The line itself.
    args: Vec<String>,
}

impl ParsedArgs {
    /// The line as upstream takes it apart a second time, over what files gave: flags of libraries
    /// are strangers then, and one without a value takes the next argument for it.
    pub(crate) fn again(&self) -> ParsedArgs {
        let mut parsed = take_apart(self.args.clone(), |flag| match library(flag) {
            true => None,
            false => flag.kind.bare_value(),
        });
        parsed.uses.retain(|flag_use| !library(flag_use.flag));
        parsed
    }
}

fn library(flag: &Flag) -> bool {
    flag.deprecation == Deprecation::CadvisorLeak || flag.name == "version"
}

/// Takes a command line (without the program's name) apart.
pub fn parse<I>(args: I) -> ParsedArgs
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    take_apart(args.into_iter().map(Into::into).collect(), |flag| flag.kind.bare_value())
}

/// What a flag without a value stands for.
type Bare = fn(&Flag) -> Option<&'static str>;

fn take_apart(line: Vec<String>, bare: Bare) -> ParsedArgs {
    let mut parsed = ParsedArgs::default();
    let mut args = line.iter().cloned();
    while let Some(arg) = args.next() {
        let step = if arg == "--" {
            parsed.positional.extend(args.by_ref());
            break;
        } else if let Some(long) = arg.strip_prefix("--") {
            long_flag((&arg, long), bare, &mut args, &mut parsed)
        } else if arg.len() > 1 && arg.starts_with('-') {
            short_flags(&arg[1..], bare, &mut args, &mut parsed)
        } else {
            parsed.positional.push(arg);
            Ok(())
        };
        if let Err(fault) = step {
            parsed.fault = Some(fault);
            break;
        }
    }
    ParsedArgs { args: line, ..parsed }
}

fn long_flag(
    (arg, long): (&str, &str),
    bare: Bare,
    rest: &mut impl Iterator<Item = String>,
    parsed: &mut ParsedArgs,
) -> Result<(), String> {
    if long.starts_with(['-', '=']) {
        return Err(format!("bad flag syntax: {arg}"));
    }
    let (name, value) = match long.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (long, None),
    };
    let Some(flag) = find(&name.replace('_', "-")) else {
        return Err(format!("unknown flag: --{name}"));
    };
    let value = value
        .or_else(|| bare(flag).map(str::to_owned))
        .or_else(|| rest.next())
        .ok_or_else(|| format!("flag needs an argument: --{name}"))?;
    parsed.uses.push(FlagUse { flag, value });
    Ok(())
}

fn short_flags(
    letters: &str,
    bare: Bare,
    rest: &mut impl Iterator<Item = String>,
    parsed: &mut ParsedArgs,
) -> Result<(), String> {
    let mut letters = letters;
    while let Some(letter) = letters.chars().next() {
        let after = &letters[letter.len_utf8()..];
        let Some(flag) = all().iter().find(|flag| flag.shorthand == Some(letter)) else {
            // pflag looks at bytes.
            let byte = letters.as_bytes().first().copied().unwrap_or_default();
            let shown = quote_char(char::from(byte));
            return Err(format!("unknown shorthand flag: {shown} in -{letters}"));
        };
        let value = match after.strip_prefix('=') {
            Some(value) if !value.is_empty() => {
                letters = "";
                value.to_owned()
            }
            _ => match bare(flag) {
                Some(value) => {
                    letters = after;
                    value.to_owned()
                }
                None if !after.is_empty() => {
                    letters = "";
                    after.to_owned()
                }
                None => {
                    let fault =
                        || format!("flag needs an argument: {} in -{letters}", quote_char(letter));
                    let value = rest.next().ok_or_else(fault)?;
                    letters = "";
                    value
                }
            },
        };
        parsed.uses.push(FlagUse { flag, value });
    }
    Ok(())
}

/// `%q` of a character: `'x'`.
fn quote_char(c: char) -> String {
    match c {
        '\'' => "'\\''".to_owned(),
        '"' => "'\"'".to_owned(),
        c => {
            let quoted = quote(&c.to_string());
            format!("'{}'", quoted.trim_matches('"'))
        }
    }
}

impl FlagUse {
    /// The error of a refused value.
    pub(crate) fn refused(&self, reason: &str) -> String {
        let name = match self.flag.shorthand {
            Some(letter) => format!("-{letter}, --{}", self.flag.name),
            None => format!("--{}", self.flag.name),
        };
        format!("invalid argument {} for {} flag: {reason}", quote(&self.value), quote(&name))
    }

    /// The notice that this use deserves.
    pub(crate) fn notice(&self) -> Option<String> {
        let text = self.flag.deprecation.text()?;
        Some(format!("Flag --{} has been deprecated, {text}", self.flag.name))
    }
}
