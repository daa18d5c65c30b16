//! Pages of a list: how many items and bytes one holds, and the token that says where the next begins.
//!
//! A token names the last item, not a count, so that a reload between two pages neither repeats items nor leaves out
//! others. It is bound to the request's filters.

use prost::Message;

use crate::digest::Digest;
use crate::service::error::{Reason, Refusal};

const DEFAULT_ITEMS: usize = 100;
const MAX_ITEMS: usize = 1000;
/// Peers accept messages of 4 MiB.
pub const MAX_BYTES: usize = 3 << 20;
/// Beside its bytes an item of a list has a tag and a length.
pub const AROUND: usize = 8;
const BINDING_BYTES: usize = 8;

/// Which page is asked for.
#[derive(Debug)]
pub struct Page {
    items: usize,
    binding: [u8; BINDING_BYTES],
    after: Option<Vec<u8>>,
}

impl Page {
    /// Of a request with these filters, named so that no two lists have the same.
    ///
    /// # Errors
    /// INVALID_REQUEST: the size is negative, or the token is not one of this list.
    pub fn of(filters: &[&str], page_size: i32, page_token: &str) -> Result<Self, Refusal> {
        let items = match usize::try_from(page_size) {
            Ok(0) => DEFAULT_ITEMS,
            Ok(size) => size.min(MAX_ITEMS),
            Err(_) => {
                let message = format!("page_size is {page_size}: write 1 to {MAX_ITEMS}, or 0 for {DEFAULT_ITEMS}");
                return Err(Refusal::new(Reason::InvalidRequest, &message).violation("page_size", message));
            }
        };
        let binding = binding(filters);
        let after = match page_token {
            "" => None,
            token => Some(position(token, binding).ok_or_else(|| {
                let message = "page_token is not one of this list: pass next_page_token as it came, with the same \
                               filters, or leave it empty for the first page";
                Refusal::new(Reason::InvalidRequest, message).violation("page_token", message)
            })?),
        };
        Ok(Self { items, binding, after })
    }

    /// How many items to look up: one more than it holds, to know whether there is a next.
    #[must_use]
    pub fn lookup(&self) -> usize {
        self.items + 1
    }

    /// The last item of the page before; none on the first.
    #[must_use]
    pub fn after(&self) -> Option<&[u8]> {
        self.after.as_deref()
    }

    /// The same, of a list whose items are named by text.
    #[must_use]
    pub fn after_name(&self) -> Option<&str> {
        self.after.as_deref().map(text)
    }

    /// The items of the page, from all that come after [`Page::after`], and the token of the next page; it is empty on
    /// the last. A page with anything to hold holds one item at least.
    pub fn cut<T, M: Message>(
        &self,
        items: impl Iterator<Item = T>,
        position: impl Fn(&T) -> Vec<u8>,
        to_wire: impl Fn(&T) -> M,
    ) -> (Vec<M>, String) {
        self.cut_by(items, position, to_wire, M::encoded_len)
    }

    /// The same, of items whose length is known otherwise.
    pub fn cut_by<T, M>(
        &self,
        items: impl Iterator<Item = T>,
        position: impl Fn(&T) -> Vec<u8>,
        to_wire: impl Fn(&T) -> M,
        len: impl Fn(&M) -> usize,
    ) -> (Vec<M>, String) {
        let (mut messages, mut bytes, mut last) = (Vec::new(), 0, None);
        for item in items {
            if messages.len() == self.items {
                return (messages, self.token(last.map(|item| position(&item))));
            }
            let message = to_wire(&item);
            bytes += len(&message) + AROUND;
            if bytes > MAX_BYTES && !messages.is_empty() {
                return (messages, self.token(last.map(|item| position(&item))));
            }
            messages.push(message);
            last = Some(item);
        }
        (messages, String::new())
    }

    fn token(&self, last: Option<Vec<u8>>) -> String {
        let mut bytes = self.binding.to_vec();
        bytes.extend(last.unwrap_or_default());
        hex::encode(bytes)
    }
}

/// The name that a position ends with. One that was made up is whatever begins it and is text.
pub fn text(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(name) => name,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}

fn binding(filters: &[&str]) -> [u8; BINDING_BYTES] {
    let mut bytes = Vec::new();
    for filter in filters {
        bytes.extend((filter.len() as u64).to_le_bytes());
        bytes.extend(filter.as_bytes());
    }
    let mut binding = [0; BINDING_BYTES];
    binding.copy_from_slice(&Digest::of(&bytes).as_bytes()[..BINDING_BYTES]);
    binding
}

fn position(token: &str, binding: [u8; BINDING_BYTES]) -> Option<Vec<u8>> {
    let bytes = hex::decode(token).ok()?;
    let (bound, position) = bytes.split_at_checked(BINDING_BYTES)?;
    (bound == binding).then(|| position.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(size: i32, token: &str) -> Page {
        Page::of(&["list", "a"], size, token).unwrap()
    }

    fn cut(page: &Page, names: &[String]) -> (Vec<String>, String) {
        let after = page.after_name().map(ToOwned::to_owned);
        let rest = names.iter().filter(|name| after.as_ref().is_none_or(|after| *name > after));
        page.cut(rest, |name| name.as_bytes().to_vec(), |name| (*name).clone())
    }

    #[test]
    fn sizes() {
        assert_eq!(page(0, "").items, 100);
        assert_eq!(page(7, "").items, 7);
        assert_eq!(page(i32::MAX, "").items, 1000);
        let refusal = Page::of(&[], -1, "").unwrap_err();
        assert_eq!(refusal.reason(), Reason::InvalidRequest);
    }

    #[test]
    fn a_token_is_of_one_list_with_its_filters() {
        let names = ["a".to_owned(), "b".to_owned()];
        let (first, token) = cut(&page(1, ""), &names);
        assert_eq!(first, ["a"]);
        assert_eq!(cut(&page(1, &token), &names), (vec!["b".to_owned()], String::new()));
        for filters in [&["list", "b"][..], &["lista"], &["list", "a", ""], &[]] {
            assert_eq!(Page::of(filters, 1, &token).unwrap_err().reason(), Reason::InvalidRequest, "{filters:?}");
        }
        for token in ["x", "00", "zz", "é", &token[2..]] {
            assert!(Page::of(&["list", "a"], 1, token).is_err(), "{token}");
        }
    }

    #[test]
    fn a_page_ends_at_3_mib_and_holds_one_item_at_least() {
        let names = [format!("a{}", "x".repeat(2 << 20)), format!("b{}", "x".repeat(2 << 20)), "c".repeat(4 << 20)];
        let (first, token) = cut(&page(0, ""), &names);
        assert_eq!(first, names[..1]);
        let (second, token) = cut(&page(0, &token), &names);
        assert_eq!(second, names[1..2]);
        assert_eq!(cut(&page(0, &token), &names), (names[2..].to_vec(), String::new()));
    }

    proptest! {
        #[test]
        fn pages_together_are_the_list_whatever_comes_and_goes_between_them(
            stays in proptest::collection::btree_set("[a-d]{1,3}", 0..12),
            others in proptest::collection::vec(proptest::collection::btree_set("[a-d]{1,3}", 0..6), 1..20),
            size in 1..5,
        ) {
            let (mut seen, mut token, mut round) = (Vec::new(), String::new(), 0);
            loop {
                let mut names: Vec<_> = stays.union(&others[round % others.len()]).cloned().collect();
                names.sort();
                let (names, next) = cut(&page(size, &token), &names);
                prop_assert!(i32::try_from(names.len()).unwrap() <= size);
                seen.extend(names);
                if next.is_empty() { break; }
                (token, round) = (next, round + 1);
            }
            prop_assert!(seen.is_sorted_by(|a, b| a < b), "nothing is repeated: {:?}", seen);
            prop_assert!(stays.iter().all(|name| seen.contains(name)), "nothing that stayed is left out");
        }
    }
}
