// SPDX-License-Identifier: GPL-2.0
//! Reader of pcap and pcapng streams, frame by frame, which tolerates files that are truncated or
//! damaged anywhere.
//!
//! Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. Both byte orders, microseconds
//! and nanoseconds, several sections and interfaces. Blocks that carry no packet are skipped.

use std::io::{self, Read};

/// Maximum length of a record that is used, in bytes; larger length fields count as damage.
const MAX_RECORD: u32 = 16 << 20;

/// Why no further frame can be read.
#[derive(Debug)]
pub enum CaptureError {
    /// The file could not be read.
    Io(io::Error),
    /// It is neither pcap nor pcapng.
    NotACapture,
    /// It is truncated in the middle of a record.
    CutOff,
    /// A field has an invalid value.
    Damaged(&'static str),
}

impl From<io::Error> for CaptureError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::CutOff,
            _ => Self::Io(error),
        }
    }
}

/// A captured frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// Time in nanoseconds since 1970, if the file has it.
    pub time_ns: Option<u64>,
    /// Type of the link-layer header, a LINKTYPE_ number.
    pub link: u32,
    /// The captured bytes; the frame may have been longer.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Little,
    Big,
}

/// Reads fields from the front of a record. Fields beyond its end are `None`, not zero.
struct Fields<'a> {
    rest: &'a [u8],
    order: Order,
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.array()?;
        Some(match self.order {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        })
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.array()?;
        Some(match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        })
    }

    fn i64(&mut self) -> Option<i64> {
        let bytes = self.array()?;
        Some(match self.order {
            Order::Little => i64::from_le_bytes(bytes),
            Order::Big => i64::from_be_bytes(bytes),
        })
    }
}

/// An interface of a pcapng section.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: u32,
    snaplen: u32,
    /// Ticks of timestamps per second; `None` if the resolution is out of range.
    ticks: Option<u64>,
    offset_seconds: i64,
}

impl Interface {
    fn time_ns(&self, high: u32, low: u32) -> Option<u64> {
        const NANOS: u128 = 1_000_000_000;
        let ticks = (u128::from(high) << 32) | u128::from(low);
        let since = ticks
            .checked_mul(NANOS)?
            .checked_div(u128::from(self.ticks?))?;
        let offset = i128::from(self.offset_seconds).checked_mul(1_000_000_000)?;
        i128::try_from(since)
            .ok()?
            .checked_add(offset)?
            .try_into()
            .ok()
    }
}

#[derive(Debug)]
enum Format {
    Pcap {
        order: Order,
        nanoseconds: bool,
        link: u32,
    },
    Pcapng {
        order: Order,
        interfaces: Vec<Interface>,
    },
}

/// A reader of a capture.
#[derive(Debug)]
pub struct Capture<R> {
    source: R,
    format: Format,
}

/// Block type of a pcapng section header, a palindrome: it is the same in both byte orders.
const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

impl<R: Read> Capture<R> {
    /// Reads the header of a capture.
    ///
    /// # Errors
    ///
    /// [`CaptureError::NotACapture`] for files of other formats and for empty ones.
    pub fn open(mut source: R) -> Result<Self, CaptureError> {
        let mut magic = [0; 4];
        read_or(&mut source, &mut magic, CaptureError::NotACapture)?;
        let (order, nanoseconds) = match magic {
            SECTION => {
                let mut capture = Self {
                    source,
                    format: Format::Pcapng {
                        order: Order::Little,
                        interfaces: Vec::new(),
                    },
                };
                capture.section().map_err(|error| match error {
                    CaptureError::Damaged(_) => CaptureError::NotACapture,
                    other => other,
                })?;
                return Ok(capture);
            }
            [0xd4, 0xc3, 0xb2, 0xa1] => (Order::Little, false),
            [0xa1, 0xb2, 0xc3, 0xd4] => (Order::Big, false),
            [0x4d, 0x3c, 0xb2, 0xa1] => (Order::Little, true),
            [0xa1, 0xb2, 0x3c, 0x4d] => (Order::Big, true),
            _ => return Err(CaptureError::NotACapture),
        };
        // Version, time zone, accuracy, snapshot length, link type.
        let mut header = [0; 20];
        source.read_exact(&mut header)?;
        let mut fields = Fields {
            rest: &header,
            order,
        };
        fields.bytes(16);
        // The upper bits give the length of the frame check sequence.
        let link = fields.u32().unwrap_or_default() & 0xffff;
        Ok(Self {
            source,
            format: Format::Pcap {
                order,
                nanoseconds,
                link,
            },
        })
    }

    /// Returns the next frame; `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// [`CaptureError`]; the rest of the capture cannot be read then.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, CaptureError> {
        match self.format {
            Format::Pcap {
                order,
                nanoseconds,
                link,
            } => self.pcap_record(order, nanoseconds, link),
            Format::Pcapng { .. } => loop {
                let Some(kind) = self.begin()? else {
                    return Ok(None);
                };
                if kind == SECTION {
                    self.section()?;
                } else if let Some(frame) = self.block(kind)? {
                    return Ok(Some(frame));
                }
            },
        }
    }

    /// Reads the first four bytes of a record; `None` at the end of the file.
    fn begin(&mut self) -> Result<Option<[u8; 4]>, CaptureError> {
        let mut bytes = [0; 4];
        let (first, rest) = bytes.split_at_mut(1);
        loop {
            match self.source.read(first) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.source.read_exact(rest)?;
        Ok(Some(bytes))
    }

    /// Reads exactly `len` bytes. Memory is allocated for bytes that exist, not for what a damaged
    /// length field says.
    fn body(&mut self, len: u32) -> Result<Vec<u8>, CaptureError> {
        if len > MAX_RECORD {
            return Err(CaptureError::Damaged("a record is longer than 16 MiB"));
        }
        let mut bytes = Vec::new();
        let got = (&mut self.source)
            .take(u64::from(len))
            .read_to_end(&mut bytes)?;
        if u32::try_from(got) == Ok(len) {
            Ok(bytes)
        } else {
            Err(CaptureError::CutOff)
        }
    }

    /// Skips `len` bytes, of which there may be more than fit in memory.
    fn skip(&mut self, len: u32) -> Result<(), CaptureError> {
        let len = u64::from(len);
        let got = io::copy(&mut (&mut self.source).take(len), &mut io::sink())?;
        match got == len {
            true => Ok(()),
            false => Err(CaptureError::CutOff),
        }
    }

    fn pcap_record(
        &mut self,
        order: Order,
        nanoseconds: bool,
        link: u32,
    ) -> Result<Option<Frame>, CaptureError> {
        let Some(first) = self.begin()? else {
            return Ok(None);
        };
        let seconds = Fields {
            rest: &first,
            order,
        }
        .u32();
        let mut header = [0; 12];
        self.source.read_exact(&mut header)?;
        let mut fields = Fields {
            rest: &header,
            order,
        };
        let fraction = fields.u32().unwrap_or_default();
        let captured = fields.u32().unwrap_or_default();
        let unit = if nanoseconds { 1 } else { 1000 };
        let time_ns = u64::from(seconds.unwrap_or_default())
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::from(fraction).saturating_mul(unit));
        Ok(Some(Frame {
            time_ns: Some(time_ns),
            link,
            bytes: self.body(captured)?,
        }))
    }

    /// Reads a section header after its block type.
    fn section(&mut self) -> Result<(), CaptureError> {
        let mut head = [0; 8];
        self.source.read_exact(&mut head)?;
        let [l0, l1, l2, l3, b0, b1, b2, b3] = head;
        let (order, len) = match [b0, b1, b2, b3] {
            [0x4d, 0x3c, 0x2b, 0x1a] => (Order::Little, u32::from_le_bytes([l0, l1, l2, l3])),
            [0x1a, 0x2b, 0x3c, 0x4d] => (Order::Big, u32::from_be_bytes([l0, l1, l2, l3])),
            _ => return Err(CaptureError::Damaged("a section has no byte order")),
        };
        // Block type, both lengths and byte order; the rest is not used.
        let Some(rest) = len.checked_sub(12) else {
            return Err(CaptureError::Damaged(
                "a section is shorter than its header",
            ));
        };
        self.skip(rest)?;
        self.format = Format::Pcapng {
            order,
            interfaces: Vec::new(),
        };
        Ok(())
    }

    /// Reads any other block after its type.
    fn block(&mut self, kind: [u8; 4]) -> Result<Option<Frame>, CaptureError> {
        let Format::Pcapng { order, .. } = self.format else {
            return Ok(None);
        };
        let mut head = [0; 4];
        self.source.read_exact(&mut head)?;
        let len = Fields { rest: &head, order }.u32().unwrap_or_default();
        let kind = Fields { rest: &kind, order }.u32().unwrap_or_default();
        let Some(rest) = len.checked_sub(8).filter(|rest| *rest >= 4) else {
            return Err(CaptureError::Damaged("a block is shorter than its header"));
        };
        if !matches!(kind, 1 | 2 | 3 | 6) {
            self.skip(rest)?;
            return Ok(None);
        }
        let body = self.body(rest)?;
        let Format::Pcapng { interfaces, .. } = &mut self.format else {
            return Ok(None);
        };
        // The length is repeated at the end.
        let content = body.len().saturating_sub(4);
        let mut fields = Fields {
            rest: body.get(..content).unwrap_or_default(),
            order,
        };
        const SHORT: CaptureError = CaptureError::Damaged("a block ends within its fields");
        match kind {
            1 => {
                interfaces.push(interface(&mut fields).ok_or(SHORT)?);
                Ok(None)
            }
            // Enhanced packet block, and the obsolete packet block with a drop count.
            2 | 6 => {
                let number = if kind == 6 {
                    fields.u32()
                } else {
                    let number = fields.u16();
                    fields.u16();
                    number.map(u32::from)
                };
                let [high, low, captured, _] = [(); 4].map(|()| fields.u32());
                let (Some(number), Some(high), Some(low), Some(captured)) =
                    (number, high, low, captured)
                else {
                    return Err(SHORT);
                };
                let from = usize::try_from(number)
                    .ok()
                    .and_then(|number| interfaces.get(number))
                    .ok_or(CaptureError::Damaged("a packet of an unknown interface"))?;
                let bytes = usize::try_from(captured)
                    .ok()
                    .and_then(|len| fields.bytes(len))
                    .ok_or(SHORT)?;
                Ok(Some(Frame {
                    time_ns: from.time_ns(high, low),
                    link: from.link,
                    bytes: bytes.to_vec(),
                }))
            }
            // Simple packet block.
            3 => {
                let original = fields.u32().ok_or(SHORT)?;
                let from = interfaces
                    .first()
                    .ok_or(CaptureError::Damaged("a packet of an unknown interface"))?;
                let limit = match from.snaplen {
                    0 => original,
                    snaplen => original.min(snaplen),
                };
                let len = usize::try_from(limit)
                    .unwrap_or(usize::MAX)
                    .min(fields.rest.len());
                Ok(Some(Frame {
                    time_ns: None,
                    link: from.link,
                    bytes: fields.bytes(len).unwrap_or_default().to_vec(),
                }))
            }
            _ => Ok(None),
        }
    }
}

/// Fills `bytes`, or fails with `short` at the end of the file.
fn read_or(
    source: &mut impl Read,
    bytes: &mut [u8],
    short: CaptureError,
) -> Result<(), CaptureError> {
    source
        .read_exact(bytes)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => short,
            _ => error.into(),
        })
}

/// Parses an interface description block.
fn interface(fields: &mut Fields<'_>) -> Option<Interface> {
    let link = u32::from(fields.u16()?);
    fields.u16()?;
    let mut interface = Interface {
        link,
        snaplen: fields.u32()?,
        ticks: Some(1_000_000),
        offset_seconds: 0,
    };
    while let (Some(code), Some(len)) = (fields.u16(), fields.u16()) {
        let padded = usize::from(len).next_multiple_of(4);
        let Some(value) = fields.bytes(padded) else {
            break;
        };
        let mut value = Fields {
            rest: value,
            order: fields.order,
        };
        match (code, len) {
            (0, _) => break,
            (9, 1) => {
                let [exponent] = value.array()?;
                let base: u64 = if exponent & 0x80 != 0 { 2 } else { 10 };
                interface.ticks = base.checked_pow(u32::from(exponent & 0x7f));
            }
            (14, 8) => interface.offset_seconds = value.i64()?,
            _ => {}
        }
    }
    Some(interface)
}

#[cfg(test)]
mod tests;
