//! `strftime_now` for chat templates: a passed time, formatted in UTC and English.
//!
//! Deliberately only the directives that templates use; another one is an error that names it.

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Year, month (1 to 12) and day (1 to 31) of a day counted from 1970-01-01.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn civil(days: i64) -> (i64, usize, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let month = usize::try_from(month).expect("months are 1 to 12");
    (year, month, day)
}

/// The day, counted from 1970-01-01, on which a year begins.
fn days_from_civil(year: i64) -> i64 {
    let before = year - 1;
    let leap = before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
    before * 365 + leap - 719_162
}

/// Seconds of the years 0 to 9999, outside of which formats lose their width.
const RANGE: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;

pub(super) fn strftime(format: &str, unix_s: i64) -> Result<String, Error> {
    let refused = |text: String| Error::new(ErrorKind::InvalidOperation, text);
    if !RANGE.contains(&unix_s) {
        return Err(refused(format!("the time {unix_s} is outside of the years 0 to 9999")));
    }
    let (days, second_of_day) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) =
        (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let month_name = MONTHS[month - 1];
    let weekday = usize::try_from((days + 4).rem_euclid(7)).expect("days are 0 to 6");
    let day_name = DAYS[weekday];
    let day_of_year = days - days_from_civil(year) + 1;
    let twelve = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // As in glibc, which Python uses: no zeros in front.
        let bare = chars.next_if_eq(&'-').is_some();
        let text = match chars.next() {
            Some('Y') => format!("{year:04}"),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('I') => format!("{twelve:02}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('j') => format!("{day_of_year:03}"),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_owned(),
            Some(other) => return Err(refused(format!("strftime_now does not know %{other}"))),
            None => return Err(refused("strftime_now has a lone %".to_owned())),
        };
        match bare {
            true => out += text.strip_prefix('0').filter(|rest| !rest.is_empty()).unwrap_or(&text),
            false => out += &text,
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn known_instants_format_as_python_does() {
        let all = "%Y %y %m %d %B %b %A %a %H:%M:%S %F %T %%";
        let more = "%j %I %p %-d %-m %-H";
        // From Python: datetime.fromtimestamp(t, timezone.utc).strftime(all).
        let cases = [
            (0, "1970 70 01 01 January Jan Thursday Thu 00:00:00 1970-01-01 00:00:00 %"),
            (951_782_399, "2000 00 02 28 February Feb Monday Mon 23:59:59 2000-02-28 23:59:59 %"),
            (951_782_400, "2000 00 02 29 February Feb Tuesday Tue 00:00:00 2000-02-29 00:00:00 %"),
            (1_796_054_461, "2026 26 11 30 November Nov Monday Mon 16:01:01 2026-11-30 16:01:01 %"),
        ];
        for (time, expected) in cases {
            assert_eq!(strftime(all, time).unwrap(), expected);
        }
        let cases = [
            (0, "001 12 AM 1 1 0"),
            (951_782_399, "059 11 PM 28 2 23"),
            (951_782_400, "060 12 AM 29 2 0"),
            (1_796_054_461, "334 04 PM 30 11 16"),
        ];
        for (time, expected) in cases {
            assert_eq!(strftime(more, time).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_not_known_is_named() {
        assert!(strftime("%Q", 0).unwrap_err().to_string().contains("%Q"));
        assert!(strftime("%", 0).is_err());
        assert!(strftime("%Y", i64::MAX).is_err());
    }
}
