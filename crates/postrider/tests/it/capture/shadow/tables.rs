//! Tables of random columns, and values for them.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

/// What the random types are made of.
const TYPES: &str = "
    create type mood as enum ('sad', 'so so', 'happy');
    create domain positive as int check (value > 0);
    create domain secret as bytea;
    create type pair as (a numeric(38,10), b text, c timestamptz, d bytea);
";

/// A type by name, and expressions for values of it.
#[derive(Debug, Clone, Copy)]
pub struct Kind(&'static str, &'static [&'static str]);

const KINDS: [Kind; 37] = [
    Kind("int", &["0", "-2147483648", "2147483647", "7"]),
    Kind("bigint", &["9223372036854775807", "-9223372036854775808", "9007199254740993"]),
    Kind("numeric(38,10)", &["1234567890123456789012345678.0123456789", "'NaN'", "-0.0000000001", "1.5"]),
    Kind("numeric", &["1.0", "1.00", "'NaN'", "1e-30", "1e40", "'Infinity'", "'-Infinity'"]),
    Kind(
        "float8",
        &["'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "0.1", "1e308", "5e-324", "0.30000000000000004"],
    ),
    Kind("real", &["'NaN'", "'-Infinity'", "0.1", "3.4e38", "1e-45"]),
    Kind("boolean", &["true", "false"]),
    Kind(
        "text",
        &[
            "''",
            "'plain'",
            "E'tab\\t \\\\ \"quotes\" ''one'' \\n line'",
            "'ünïcödé 🦀'",
            "repeat('long', 3000)",
        ],
    ),
    Kind("varchar(9)", &["'x'", "'  x  '"]),
    Kind("char(5)", &["'ab'", "'abcde'"]),
    Kind(
        "timestamptz",
        &["'infinity'", "'-infinity'", "now()", "'2026-03-29 01:30:00.123456+01'", "'0044-03-15 12:00 BC'"],
    ),
    Kind("timestamp", &["'infinity'", "'2026-02-03 04:05:06.7'", "'0044-03-15 12:00 BC'"]),
    Kind("date", &["'infinity'", "'2026-02-03'", "'0044-03-15 BC'"]),
    Kind("time", &["'24:00'", "'04:05:06.789'"]),
    Kind("timetz", &["'04:05:06+05:45'", "'23:59:60-12'"]),
    Kind("interval", &["'1 year -2 mons 3 days -04:05:06.7'", "'-1 day +00:00:01'", "'0'", "'1000 hours'"]),
    Kind("bytea", &["'\\x00ff10'", "''", "decode(repeat('00ff', 2000), 'hex')", "'abc'"]),
    Kind("secret", &["'\\x00ff10'", "''"]),
    Kind("uuid", &["gen_random_uuid()", "'00000000-0000-0000-0000-000000000000'"]),
    Kind("json", &["'{\"a\":  [1, 2.50, null], \"a\": 1}'", "'\"x\"'"]),
    Kind("jsonb", &["'{\"b\": {\"c\": [1, 2.50]}}'", "'12345678901234567890.123'"]),
    Kind("mood", &["'sad'", "'so so'", "'happy'"]),
    Kind("positive", &["1", "77"]),
    Kind("int[]", &["'{}'", "'{1,null,3}'", "'{{1,2},{3,4}}'"]),
    Kind("text[]", &["'{\"a b\",\"null\",null,\"\"}'", "array['\"', '\\']"]),
    Kind("bytea[]", &["array['\\x00'::bytea, null, '\\xff10']", "'{}'"]),
    Kind("timestamptz[]", &["array[now(), 'infinity']"]),
    Kind("float8[]", &["array['NaN', 0.1, '-Infinity']::float8[]"]),
    Kind(
        "pair",
        &["row(1.5, 'b', now(), '\\x01')", "row(null, null, null, null)", "row('NaN', '\"', 'infinity', '')"],
    ),
    Kind("pair[]", &["array[row(1.5, 'b', now(), '\\x01')::pair, null]", "'{}'"]),
    Kind("int4range", &["'[1,5)'", "'empty'", "'(,)'", "'[3,)'"]),
    Kind(
        "tstzrange",
        &["'[2026-01-13 12:00+00, 2026-12-01)'", "'(-infinity, infinity)'", "tstzrange(now(), null)"],
    ),
    Kind("daterange", &["'[2026-01-02,2026-02-03)'"]),
    Kind("numrange", &["'[1.50,2.5]'"]),
    Kind("int4multirange", &["'{[1,3), [5,8)}'", "'{}'"]),
    Kind("inet", &["'10.1.2.3/8'", "'::1'"]),
    Kind("bit varying", &["B'10110'", "B''"]),
];

const KEYS: [&str; 4] = ["int", "bigint", "text", "uuid"];

impl Kind {
    pub fn name(self) -> &'static str {
        self.0
    }

    pub fn is_bytes(self) -> bool {
        matches!(self.0, "bytea" | "secret")
    }

    /// A value as SQL.
    pub fn value(self, rng: &mut StdRng) -> String {
        if rng.random_bool(0.15) {
            return "null".to_owned();
        }
        format!("({})::{}", self.1.choose(rng).unwrap(), self.0)
    }

    fn random(rng: &mut StdRng) -> Self {
        *KINDS.choose(rng).unwrap()
    }
}

#[derive(Debug, Clone)]
pub struct Field {
    pub name: String,
    pub kind: Kind,
    /// Made of the key by the server.
    generated: bool,
}

/// The table `things`, as it is now.
#[derive(Debug)]
pub struct Subject {
    key: &'static str,
    pub fields: Vec<Field>,
    columns_ever: usize,
}

impl Subject {
    pub fn random(rng: &mut StdRng) -> Self {
        let mut subject = Self { key: KEYS.choose(rng).unwrap(), fields: Vec::new(), columns_ever: 0 };
        for _ in 0..rng.random_range(3..12) {
            subject.grow(rng);
        }
        if rng.random_bool(0.5) {
            subject.fields.push(Field {
                name: "generated".to_owned(),
                kind: Kind("text", &[]),
                generated: true,
            });
        }
        subject
    }

    pub fn create(&self) -> String {
        let columns: Vec<String> = self
            .fields
            .iter()
            .map(|field| {
                let generated =
                    if field.generated { " generated always as (key::text || '!') stored" } else { "" };
                format!(", {} {}{generated}", field.name, field.kind.0)
            })
            .collect();
        format!("{TYPES} create table public.things (key {} primary key{})", self.key, columns.concat())
    }

    /// Another column.
    pub fn grow(&mut self, rng: &mut StdRng) -> Field {
        self.columns_ever += 1;
        let field =
            Field { name: format!("c{}", self.columns_ever), kind: Kind::random(rng), generated: false };
        self.fields.push(field.clone());
        field
    }

    /// One column less, if there are some.
    pub fn shrink(&mut self, rng: &mut StdRng) -> Option<String> {
        (self.fields.len() > 2).then(|| self.fields.remove(rng.random_range(0..self.fields.len())).name)
    }

    /// Columns that can be written, without the key.
    pub fn written(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| !field.generated)
    }

    /// One of few keys, so that they meet.
    pub fn key(&self, rng: &mut StdRng) -> String {
        let n = rng.random_range(1..12);
        match self.key {
            "uuid" => format!("'00000000-0000-0000-0000-{n:012}'::uuid"),
            "text" => format!("'key \"{n}\"'"),
            _ => n.to_string(),
        }
    }

    /// An insert of some rows with different keys.
    pub fn insert(&self, rng: &mut StdRng) -> String {
        let names: Vec<&str> =
            std::iter::once("key").chain(self.written().map(|field| field.name.as_str())).collect();
        let mut rows: Vec<String> = Vec::new();
        let mut keys: Vec<String> = (0..rng.random_range(1..4)).map(|_| self.key(rng)).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let values: Vec<String> = self.written().map(|field| field.kind.value(rng)).collect();
            rows.push(format!("({})", std::iter::once(key).chain(values).collect::<Vec<_>>().join(", ")));
        }
        format!("insert into things ({}) values {}", names.join(", "), rows.join(", "))
    }
}
