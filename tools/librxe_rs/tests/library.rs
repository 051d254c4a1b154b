// SPDX-License-Identifier: GPL-2.0
//! Tests without a device: agreement with the headers, errors, memory. `ktests/vm/segments.py`
//! tests the calls.

use rxe_rs::{Error, Region, Storage, FIRST_SEGMENT, MAX_SEGMENTS};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;

/// Returns the folder of this package. It is determined when the test runs, because clones that
/// share a build folder share the compiled test, too.
fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").unwrap().into()
}

fn header(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Returns the number that follows `name` in a header.
fn number(header: &str, name: &str) -> u64 {
    let mut words = header.split_whitespace().skip_while(|word| *word != name);
    words.next().unwrap_or_else(|| panic!("no {name}"));
    let word = words.find(|word| *word != "=").unwrap();
    let digits = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => digits.parse().unwrap(),
    }
}

#[test]
fn constants_are_those_of_the_header() {
    let uapi = header("../../uapi/rxe_rs.h");
    assert_eq!(number(&uapi, "RXE_RS_FIRST_SEGMENT"), FIRST_SEGMENT);
    assert_eq!(number(&uapi, "RXE_RS_MAX_SEGMENTS"), MAX_SEGMENTS.into());
    let sys = header("src/sys.rs");
    for (c, rust) in [
        ("RXE_RS_ATTR_MR", "ATTR_MR:"),
        ("RXE_RS_ATTR_REQUEST", "ATTR_REQUEST:"),
        ("RXE_RS_ATTR_STATE", "ATTR_STATE:"),
        ("RXE_RS_ATTR_QP", "ATTR_QP:"),
        ("RXE_RS_METHOD_MR_TIE", "METHOD_TIE:"),
    ] {
        let (_, behind) = sys.split_once(&format!("const {rust} u16 = ")).unwrap();
        let value = behind.split(';').next().unwrap();
        let value = u64::from_str_radix(value.trim_start_matches("0x"), 16).unwrap();
        assert_eq!(value, number(&uapi, c), "{c}");
    }
    for (c, value) in [
        ("RXE_RS_METHOD_MR_ADD", 0x1000),
        ("RXE_RS_METHOD_MR_REMOVE", 0x1001),
    ] {
        assert_eq!(number(&uapi, c), value, "{c}");
        assert!(sys.contains(&format!("const METHOD: u16 = {value:#x};")));
    }
}

/// Both headers compile on their own, and the structures have the sizes of the ABI.
#[test]
fn headers_compile() {
    let root = root();
    let code = "#include <rxe_rs_verbs.h>\n\
        _Static_assert(sizeof(struct rxe_rs_mr_add) == 40, \"add\");\n\
        _Static_assert(sizeof(struct rxe_rs_mr_remove) == 32, \"remove\");\n\
        _Static_assert(sizeof(struct rxe_rs_mr_state) == 64, \"state\");\n\
        _Static_assert(sizeof(struct rxe_rs_mr_tie) == 16, \"tie\");\n\
        int main(void) { return rxe_rs_remove(-1, 0, 0, 1, 0); }\n";
    let source = std::env::temp_dir().join(format!("rxe_rs-{}.c", std::process::id()));
    std::fs::write(&source, code).unwrap();
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .arg("-I")
        .arg(root.join("include"))
        .arg("-I")
        .arg(root.join("../../uapi"))
        .arg(&source)
        .status();
    std::fs::remove_file(&source).unwrap();
    match compiled {
        Ok(status) => assert!(status.success()),
        Err(e) => eprintln!("no C compiler here: {e}"),
    }
}

#[test]
fn calls_on_another_file_fail() {
    let null = File::open("/dev/null").unwrap();
    let region = Region::new(null.as_fd(), 1, 2);
    const ENOTTY: i32 = 25;
    let (error, storage) = region.add(Storage::new(1).unwrap(), 0).unwrap_err();
    assert_eq!(error.errno(), ENOTTY);
    assert!(storage.as_slice().iter().all(|byte| *byte == 0));
    // SAFETY: The file is not a DMA buffer, so the call fails and adds no memory.
    let refused = unsafe { region.add_dmabuf(null.as_fd(), 0, 4096, 0) };
    assert_eq!(refused.unwrap_err().errno(), ENOTTY);
    assert_eq!(region.remove_handle(1).unwrap_err().errno(), ENOTTY);
    assert_eq!(region.remove_range(0, 1).unwrap_err().errno(), ENOTTY);
}

#[test]
fn errors_have_the_meanings_of_these_calls() {
    let text = |errno| Error::from_errno(errno).to_string();
    assert!(text(17).starts_with("it overlaps another segment"));
    assert!(text(93).starts_with("the driver has no such calls"));
    assert!(text(1).starts_with("RLIMIT_MEMLOCK is 0"));
    assert!(text(7).starts_with("Argument list too long"));
    let io: std::io::Error = Error::from_errno(12).into();
    assert_eq!(io.raw_os_error(), Some(12));
}

#[test]
fn storage_is_of_whole_pages() {
    let mut storage = Storage::new(5000).unwrap();
    assert_eq!(storage.len() % 4096, 0);
    assert!(storage.len() >= 5000 && storage.as_slice().iter().all(|b| *b == 0));
    storage.as_mut_slice()[4999] = 7;
    assert_eq!(storage.as_slice()[4999], 7);
    assert_eq!(Storage::new(0).unwrap_err().errno(), 22);
    assert_eq!(Storage::new(usize::MAX).unwrap_err().errno(), 22);
    assert!(Storage::new(usize::MAX / 4).is_err());
}
