//! Every built-in device, and files people write.

use super::*;
use proptest::prelude::*;

const MINE: &str = include_str!("../../../docs/example_device.toml");

#[test]
fn every_device_reads_under_its_name() {
    for name in Device::names() {
        assert_eq!(Device::find(name).unwrap().name, name);
    }
    assert_eq!(Device::find("tpu_V5E").unwrap().name, "TPU-v5e");
    assert_eq!(Device::find("a10040g").unwrap().name, "A100-40G");
}

#[test]
fn every_device_file_says_vendor_and_kind() {
    for device in Device::all().unwrap() {
        assert_eq!(device.assumed, Vec::<String>::new(), "{}", device.name);
        assert_eq!(device.vendor.kind(), device.kind, "{}", device.name);
        assert_eq!(device.kind == Kind::Tpu, device.name.starts_with("TPU"), "{}", device.name);
        assert_eq!(device.kind == Kind::Tpu, !device.slices.is_empty(), "{}", device.name);
        for slice in device.slices.iter().flat_map(SliceHost::slices) {
            assert!(slice.chips <= device.island_devices, "{} of {}", slice.topology, device.name);
        }
    }
}

#[test]
fn a_file_that_says_neither_is_an_nvidia_gpu_and_the_answer_says_so() {
    let said = |lines: &str| {
        let text: String = MINE
            .lines()
            .filter(|l| !l.starts_with("kind") && !l.starts_with("vendor"))
            .fold(String::new(), |text, line| text + line + "\n");
        Device::parse(&text.replace("name = \"my-H100\"", &format!("name = \"my-H100\"\n{lines}")))
    };
    let device = said("").unwrap();
    assert_eq!((device.kind, device.vendor), (Kind::Gpu, Vendor::Nvidia));
    assert_eq!(device.assumed, ["kind", "vendor"]);
    let device = said("kind = \"tpu\"").unwrap();
    assert_eq!((device.vendor, device.assumed.as_slice()), (Vendor::Google, &["vendor".to_string()][..]));
    let wrong = |lines: &str| said(lines).unwrap_err()[0].message.clone();
    assert_eq!(wrong("vendor = \"google\""), "google makes no gpu");
    assert_eq!(wrong("kind = \"npu\""), "`kind` cannot be `npu`");
    let host = "accelerator = \"a\"\nmachine = \"m\"\nchips_per_host = 4\nsource = \"here\"\n";
    let slices = |top: &str| {
        let text =
            MINE.replace("kind = \"gpu\"", "kind = \"tpu\"").replace("vendor = \"nvidia\"", "vendor = \"google\"");
        Device::parse(&format!("{text}\n[[slices]]\n{host}topologies = [\"{top}\"]\n"))
    };
    assert_eq!(slices("2x4").unwrap().slices[0].slices().next().unwrap().hosts, 2);
    for top in ["2x3", "8", "2x", "2x2x2x2", "0x4"] {
        assert_eq!(slices(top).unwrap_err()[0].rule, "hardware/consistency", "{top}");
    }
}

#[test]
fn figures_are_in_the_range_of_their_kind() {
    for device in Device::all().unwrap() {
        let name = &device.name;
        assert!((8 << 30..1 << 39).contains(&device.memory_bytes), "{name}");
        // Tensor cores of the V100 are older than bf16.
        assert!(device.formats.iter().any(|format| format == "bf16") || name == "V100", "{name}");
        assert!(!device.peaks.is_empty() && device.memory_rate.is_some(), "{name}");
        assert!(device.peaks.iter().all(|p| (7e13..1e17).contains(&p.flops)), "{name}");
        let memory = device.known_memory_rate().unwrap().bytes_per_second;
        assert!((2e11..1e13).contains(&memory), "{name}");
        // Of desktop cards nobody names a network.
        let network = device.link(Way::Network).map_or(0.0, |link| link.bytes_per_second);
        if let Ok(island) = device.link(Way::Island) {
            assert!(network < island.bytes_per_second && island.bytes_per_second < memory, "{name}");
        } else {
            assert!(device.island_devices == 1 || name == "TPU-v7", "{name}: an island without a link");
        }
    }
}

#[test]
fn narrower_formats_are_no_slower() {
    for device in Device::all().unwrap() {
        let order = [
            ["tf32", "fp16"],
            ["fp16", "bf16"],
            ["bf16", "fp8"],
            ["fp8", "mxfp8"],
            ["mxfp8", "nvfp4"],
            ["bf16", "int8"],
        ];
        for [wide, narrow] in order {
            if let (Ok(wide), Ok(narrow)) = (device.peak(wide), device.peak(narrow)) {
                assert!(wide.flops <= narrow.flops, "{}: {} and {}", device.name, wide.format, narrow.format);
            }
        }
    }
}

#[test]
fn what_nobody_states_is_refused_by_name() {
    let spark = Device::find("GB10").unwrap();
    let finding = spark.peak("bf16").unwrap_err();
    assert_eq!(
        (finding.rule, finding.message.as_str()),
        ("hardware/unknown-fact", "GB10 does not say how fast it multiplies in bf16")
    );
    assert!(spark.link(Way::Island).unwrap_err().hint.unwrap().contains("`[island_link]`"));
    assert!(spark.link(Way::Host).is_err() && spark.link(Way::Network).is_ok());
}

#[test]
fn the_documented_example_reads() {
    let mine = Device::parse(MINE).unwrap();
    assert_eq!((mine.name.as_str(), mine.devices_per_node, mine.peaks.len()), ("my-H100", 4, 2));
    assert!(mine.outside().is_measured);
    let page = include_str!("../../../docs/hardware.md");
    assert!(page.contains(MINE), "docs/hardware.md shows another file than docs/example_device.toml");
}

#[test]
fn every_mistake_of_a_file_is_named_where_it_stands() {
    let text = MINE
        .replace("memory_bytes", "memory_byte")
        .replace("[memory_rate]", "[memory_rates]")
        .replace("\"fp8\"]", "\"fp9\"]")
        .replace("island_devices = 4", "island_devices = 3");
    let findings = Device::parse(&text).unwrap_err();
    let said: Vec<(&str, &str, Option<&str>)> =
        findings.iter().map(|f| (f.rule, f.message.as_str(), f.hint.as_deref())).collect();
    let known = "did you mean `fp8`? known are bf16, fp16, tf32, fp32, fp8, mxfp8, nvfp4, int8";
    assert_eq!(
        said,
        [
            ("hardware/missing-key", "the device file lacks `memory_bytes`, a whole number", None),
            ("hardware/choice", "unknown format `fp9`", Some(known)),
            ("hardware/unknown-key", "unknown key `memory_byte`", Some("did you mean `memory_bytes`?")),
            ("hardware/unknown-key", "unknown key `memory_rates`", Some("did you mean `memory_rate`?")),
        ]
    );
    for finding in &findings[1..] {
        assert!(finding.span.is_some(), "{}", finding.message);
    }
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let wrong = |from: &str, to: &str| {
        assert!(MINE.contains(from), "{from}");
        Device::parse(&MINE.replace(from, to)).unwrap_err()[0].message.clone()
    };
    assert_eq!(
        wrong("island_devices = 4", "island_devices = 3"),
        "islands of 3 and nodes of 4 do not fit into one another"
    );
    assert_eq!(
        wrong("[\"bf16\", \"fp8\"]", "[\"bf16\"]"),
        "a rate of `fp8` stands here, and `formats` does not list it"
    );
    assert_eq!(wrong("format = \"fp8\"", "format = \"bf16\""), "`bf16` has two rates");
    assert_eq!(wrong("network = \"roce400\"", "network = \"roce40\""), "unknown network `roce40`");
    assert_eq!(wrong("network = \"roce400\"", "network = 4"), "`network` must be a table, found integer");
    assert!(wrong("visible_bytes = 8", "visible_bytes = 9").starts_with("`visible_bytes` is more than"));
    assert!(wrong("memory_source = \"n", "memory_source = \"\" # \"").contains("is empty"));
}

proptest! {
    #[test]
    fn no_text_makes_a_device_file_panic(text in "\\PC{0,80}") {
        let _ = Device::parse(&text);
    }

    /// Bytes of a good file dropped, doubled and swapped: mistakes near what people type.
    #[test]
    fn no_slip_makes_a_device_file_panic(cut in 0usize..1200, len in 0usize..40, put in "[\\[\\]=\".0-9a-z\n-]{0,6}") {
        let start = (0..=cut.min(MINE.len())).rev().find(|&i| MINE.is_char_boundary(i)).unwrap_or(0);
        let end = (start..=(start + len).min(MINE.len())).rev().find(|&i| MINE.is_char_boundary(i)).unwrap_or(start);
        let slipped = format!("{}{put}{}", &MINE[..start], &MINE[end..]);
        if let Err(findings) = Device::parse(&slipped) {
            prop_assert!(!findings.is_empty());
        }
    }
}
