//! From the tree to typed values, by the types' own serde implementations; every error knows its key.

mod trouble;

use serde::Deserializer;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, EnumAccess, Error as _, IntoDeserializer as _, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::finding::Finding;
use super::shape::Shape;
use super::tree::{Entry, Node, Value};
use trouble::{Kind, Trouble};

/// Reads a value of the type `T`. Everything that is wrong goes to `findings`, and is then read as if it were not there.
///
/// `path` says where in the file the tree stands, for the words of the findings.
pub(crate) fn read<T: DeserializeOwned>(
    tree: &Node,
    path: &[&str],
    shape: &Shape,
    findings: &mut Vec<Finding>,
) -> Option<T> {
    let mut tree = tree.clone();
    loop {
        let trouble = match T::deserialize(&tree) {
            Ok(value) => return Some(value),
            Err(trouble) => trouble,
        };
        let way: Vec<String> = trouble.path.iter().rev().cloned().collect();
        let trouble = trouble.or_at(&tree.place);
        let is_known = match trouble.kind {
            Kind::Missing => match tree.find(&way) {
                Some(section) => section.value.is_incomplete,
                None => tree.is_incomplete,
            },
            _ => false,
        };
        if !is_known {
            let mut full: Vec<&str> = path.to_vec();
            full.extend(way.iter().map(String::as_str));
            findings.push(trouble.conceal::<T>(&tree, &way).finding(&full, shape));
        }
        // What has no path concerns the whole of it.
        if !tree.cut(&way) {
            return None;
        }
    }
}

type Outcome<T> = Result<T, Trouble>;

impl Node {
    /// The text of a single value.
    fn single(&self) -> Outcome<&str> {
        match &self.value {
            Value::Scalar { .. } if self.is_null() => {
                Err(Trouble::custom("there is no value; leave the key out to have its default"))
            }
            Value::Scalar { text, .. } => Ok(text),
            Value::List(_) => Err(Trouble::custom("takes a single value, not a list")),
            Value::Map(_) => Err(Trouble::custom("takes a single value, not keys of its own")),
        }
    }

    fn parsed<T: std::str::FromStr>(&self, what: &str) -> Outcome<T> {
        let text = self.single()?;
        text.parse().map_err(|_| Trouble::custom(format!("{text:?} is no {what}")))
    }

    fn section(&self, keys: &str) -> Outcome<Entries<'_>> {
        match self.entries() {
            Some(entries) => Ok(Entries { entries: entries.iter(), current: None }),
            None => {
                Err(Trouble::custom(format!("takes keys of its own{keys}, not a single value or a list")))
            }
        }
    }
}

/// Whole numbers are read from the text, within the bounds of their type.
macro_rules! whole {
    ($($method:ident $visit:ident $type:ident),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
            let what = format!("whole number from {} to {}", $type::MIN, $type::MAX);
            visitor.$visit(self.parsed(&what)?)
        }
    )*};
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Trouble;

    whole!(
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64
    );

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        match &self.value {
            Value::Map(_) => self.deserialize_map(visitor),
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Scalar { .. } if self.is_null() => visitor.visit_unit(),
            Value::Scalar { text, is_plain: false } => visitor.visit_borrowed_str(text),
            Value::Scalar { text, is_plain: true } => match (text.as_str(), text.parse(), text.parse()) {
                ("true", ..) => visitor.visit_bool(true),
                ("false", ..) => visitor.visit_bool(false),
                (_, Ok(number), _) => visitor.visit_i64(number),
                (_, _, Ok(number)) => visitor.visit_f64(number),
                _ => visitor.visit_borrowed_str(text),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        visitor.visit_bool(self.parsed("choice between true and false")?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        visitor.visit_f64(self.parsed("number")?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        visitor.visit_borrowed_str(self.single()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        if self.is_null() { visitor.visit_unit() } else { Err(Trouble::custom("takes no value")) }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Outcome<V::Value> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Outcome<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        match &self.value {
            Value::List(items) => visitor.visit_seq(Items { items: items.iter().enumerate() }),
            _ => Err(Trouble::custom("takes a list, such as [a, b]")),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Outcome<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Outcome<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        visitor.visit_map(self.section("")?)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Outcome<V::Value> {
        let keys = if fields.is_empty() { String::new() } else { format!(" ({})", fields.join(", ")) };
        visitor.visit_map(self.section(&keys)?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Outcome<V::Value> {
        match &self.value {
            Value::Map(entries) => match entries.as_slice() {
                [entry] => visitor.visit_enum(Choice { entry }),
                _ => Err(Trouble::new(Kind::Missing, "exactly one key is needed".to_owned())),
            },
            _ => visitor.visit_enum(self.single()?.into_deserializer()),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Outcome<V::Value> {
        visitor.visit_unit()
    }
}

struct Entries<'t> {
    entries: std::slice::Iter<'t, Entry>,
    current: Option<&'t Entry>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Trouble;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Outcome<Option<K::Value>> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        self.current = Some(entry);
        let key =
            seed.deserialize(BorrowedStrDeserializer::new(&entry.key)).map_err(|trouble: Trouble| {
                // The key is meant, whatever is wrong with it.
                Trouble { place: Some(entry.place.clone()), ..trouble }.under(entry)
            })?;
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Outcome<V::Value> {
        match self.current {
            Some(entry) => seed.deserialize(&entry.value).map_err(|trouble| trouble.under(entry)),
            None => Err(Trouble::custom("a value was asked for before its key")),
        }
    }
}

struct Items<'t> {
    items: std::iter::Enumerate<std::slice::Iter<'t, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Trouble;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Outcome<Option<T::Value>> {
        let Some((number, item)) = self.items.next() else { return Ok(None) };
        let item = seed.deserialize(item).map_err(|mut trouble: Trouble| {
            trouble.place.get_or_insert_with(|| item.place.clone());
            trouble.path.push(number.to_string());
            trouble
        })?;
        Ok(Some(item))
    }
}

/// `kind: { … }`
struct Choice<'t> {
    entry: &'t Entry,
}

impl<'de> EnumAccess<'de> for Choice<'de> {
    type Error = Trouble;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Outcome<(V::Value, Self)> {
        let kind = seed
            .deserialize(BorrowedStrDeserializer::new(&self.entry.key))
            .map_err(|trouble: Trouble| trouble.under(self.entry))?;
        Ok((kind, self))
    }
}

impl<'de> VariantAccess<'de> for Choice<'de> {
    type Error = Trouble;

    fn unit_variant(self) -> Outcome<()> {
        if self.entry.value.is_null() {
            Ok(())
        } else {
            Err(Trouble::custom("takes no value").under(self.entry))
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Outcome<T::Value> {
        seed.deserialize(&self.entry.value).map_err(|trouble| trouble.under(self.entry))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Outcome<V::Value> {
        self.entry.value.deserialize_seq(visitor).map_err(|trouble| trouble.under(self.entry))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Outcome<V::Value> {
        self.entry.value.deserialize_struct("", fields, visitor).map_err(|trouble| trouble.under(self.entry))
    }
}
