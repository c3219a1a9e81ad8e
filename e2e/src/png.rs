//! Screenshots as small PNG images: the colours of a page are few, apart from the edges of letters.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};

use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// The colours of a small image: flat areas keep theirs.
const MAX_COLOURS: usize = 48;

/// The most frequent colours, which may be similar: areas differ little from their background.
const FLAT_COLOURS: usize = 12;

/// The squared distance of any further colour from each other one: edges of letters have many shades of
/// a few colours.
const MIN_DISTANCE: u32 = 900;

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

type Rgb = [u8; 3];

#[derive(Debug, PartialEq, Eq)]
struct Image {
    width: usize,
    height: usize,
    /// Row by row, without transparency.
    pixels: Vec<Rgb>,
}

/// The same image with few colours.
///
/// # Panics
///
/// If it is not a PNG as browsers write it: 8 bits, with or without transparency, not interlaced.
pub fn with_few_colours(png: &[u8]) -> Vec<u8> {
    encode(&decode(png))
}

fn decode(png: &[u8]) -> Image {
    let mut rest = png.strip_prefix(SIGNATURE).expect("a PNG");
    let (mut header, mut compressed) = (Vec::new(), Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (kind, after) = after.split_first_chunk::<4>().expect("the type of a chunk");
        let length = u32::from_be_bytes(*length) as usize;
        let (data, after) = after.split_at(length);
        match kind {
            b"IHDR" => header = data.to_vec(),
            b"IDAT" => compressed.extend_from_slice(data),
            _ => {}
        }
        // The checksum.
        rest = &after[4..];
    }
    let number =
        |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes")) as usize;
    let (width, height) = (number(0), number(4));
    let channels = match header[8..13] {
        [8, 2, 0, 0, 0] => 3,
        [8, 6, 0, 0, 0] => 4,
        ref other => panic!("an unexpected form of PNG: {other:?}"),
    };
    let mut bytes = Vec::new();
    let mut decoder = ZlibDecoder::new(&compressed[..]);
    decoder.read_to_end(&mut bytes).expect("zlib data");
    let row_length = width * channels;
    let mut pixels = Vec::with_capacity(width * height);
    let mut above = vec![0; row_length];
    for line in bytes.chunks_exact(row_length + 1) {
        let mut row = line[1..].to_vec();
        unfilter(line[0], &mut row, &above, channels);
        pixels.extend(row.chunks_exact(channels).map(|it| [it[0], it[1], it[2]]));
        above = row;
    }
    assert_eq!(pixels.len(), width * height);
    Image {
        width,
        height,
        pixels,
    }
}

/// The filters of the PNG specification, section 9.
fn unfilter(filter: u8, row: &mut [u8], above: &[u8], channels: usize) {
    for at in 0..row.len() {
        let (left, corner) = match at.checked_sub(channels) {
            Some(before) => (row[before], above[before]),
            None => (0, 0),
        };
        let predicted = match filter {
            0 => 0,
            1 => left,
            2 => above[at],
            3 => u8::midpoint(left, above[at]),
            4 => paeth(left, above[at], corner),
            other => panic!("an unknown filter: {other}"),
        };
        row[at] = row[at].wrapping_add(predicted);
    }
}

fn paeth(left: u8, above: u8, corner: u8) -> u8 {
    let estimate = i16::from(left) + i16::from(above) - i16::from(corner);
    let distance = |it: u8| (estimate - i16::from(it)).abs();
    // The first of the nearest ones.
    [left, above, corner]
        .into_iter()
        .min_by_key(|it| distance(*it))
        .unwrap_or_default()
}

/// The most frequent colours.
fn palette(image: &Image) -> Vec<Rgb> {
    let mut counts: HashMap<Rgb, usize> = HashMap::new();
    for pixel in &image.pixels {
        *counts.entry(*pixel).or_default() += 1;
    }
    let mut colours: Vec<_> = counts.into_iter().collect();
    colours.sort_by_key(|(colour, count)| (std::cmp::Reverse(*count), *colour));
    let mut palette: Vec<Rgb> = Vec::new();
    for (colour, _) in colours {
        let is_new = || {
            palette
                .iter()
                .all(|it| distance(*it, colour) >= MIN_DISTANCE)
        };
        if palette.len() < FLAT_COLOURS || is_new() {
            palette.push(colour);
        }
        if palette.len() == MAX_COLOURS {
            break;
        }
    }
    palette
}

/// Squared.
fn distance(one: Rgb, other: Rgb) -> u32 {
    let channels = one.into_iter().zip(other);
    channels.map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum()
}

fn encode(image: &Image) -> Vec<u8> {
    let palette = palette(image);
    let mut known: HashMap<Rgb, u8> = HashMap::new();
    let mut nearest = |colour: Rgb| {
        *known.entry(colour).or_insert_with(|| {
            let colours = (0..).zip(&palette);
            let nearest = colours.min_by_key(|(_, it)| distance(colour, **it));
            nearest.map_or(0, |(index, _)| index)
        })
    };
    let mut lines = Vec::with_capacity((image.width + 1) * image.height);
    for row in image.pixels.chunks_exact(image.width) {
        lines.push(0);
        lines.extend(row.iter().map(|it| nearest(*it)));
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&lines).expect("memory");
    let compressed = encoder.finish().expect("memory");
    let side = |length: usize| u32::try_from(length).expect("a small image").to_be_bytes();
    let form = [8, 3, 0, 0, 0];
    let header = [&side(image.width)[..], &side(image.height), &form].concat();
    let mut png = SIGNATURE.to_vec();
    for (kind, data) in [
        (b"IHDR", header),
        (b"PLTE", palette.concat()),
        (b"IDAT", compressed),
        (b"IEND", Vec::new()),
    ] {
        png.extend(side(data.len()));
        png.extend(kind);
        png.extend(&data);
        let mut checksum = Crc::new();
        checksum.update(kind);
        checksum.update(&data);
        png.extend(checksum.sum().to_be_bytes());
    }
    png
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A truecolour PNG whose rows use each filter in turn.
    fn truecolour(image: &Image) -> Vec<u8> {
        let mut lines = Vec::new();
        let mut above = vec![0; image.width * 3];
        for (row, filter) in image.pixels.chunks_exact(image.width).zip((0..5).cycle()) {
            let row = row.concat();
            lines.push(filter);
            for (at, byte) in row.iter().enumerate() {
                let before = at.checked_sub(3);
                let left = before.map_or(0, |it| row[it]);
                let corner = before.map_or(0, |it| above[it]);
                let predicted = match filter {
                    0 => 0,
                    1 => left,
                    2 => above[at],
                    3 => u8::midpoint(left, above[at]),
                    _ => paeth(left, above[at], corner),
                };
                lines.push(byte.wrapping_sub(predicted));
            }
            above = row;
        }
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&lines).unwrap();
        let side = |it: usize| u32::try_from(it).unwrap().to_be_bytes();
        let header = [
            &side(image.width)[..],
            &side(image.height),
            &[8, 2, 0, 0, 0],
        ]
        .concat();
        let mut png = SIGNATURE.to_vec();
        for (kind, data) in [(b"IHDR", header), (b"IDAT", encoder.finish().unwrap())] {
            png.extend([&side(data.len())[..], kind, &data, &[0; 4]].concat());
        }
        png
    }

    fn image(colour: impl Fn(u8, u8) -> Rgb) -> Image {
        let rows = (0..20).flat_map(|y| (0..12).map(move |x| (x, y)));
        Image {
            width: 12,
            height: 20,
            pixels: rows.map(|(x, y)| colour(x, y)).collect(),
        }
    }

    /// The colours of an image with a palette.
    fn colours(png: &[u8]) -> usize {
        let at = png.windows(4).position(|it| it == b"PLTE").unwrap();
        u32::from_be_bytes(png[at - 4..at].try_into().unwrap()) as usize / 3
    }

    #[test]
    fn every_filter_is_undone() {
        let expected = image(|x, y| [x * 17, y * 11, x ^ y]);
        assert_eq!(decode(&truecolour(&expected)), expected);
    }

    #[test]
    fn frequent_colours_stay_and_their_number_has_a_bound() {
        let few = image(|x, y| [(x % 3) * 40, 7, y % 2]);
        assert_eq!(colours(&with_few_colours(&truecolour(&few))), 6);
        let many = image(|x, y| {
            if x < 6 {
                [1, 2, 3]
            } else {
                [x * 20, y * 12, 200]
            }
        });
        let found = palette(&many);
        assert_eq!(found[0], [1, 2, 3]);
        let png = with_few_colours(&truecolour(&many));
        assert_eq!(colours(&png), found.len());
        assert!(FLAT_COLOURS < found.len() && found.len() <= MAX_COLOURS);
        // Of many similar colours the rare ones have no entry.
        let similar = image(|x, y| {
            if x == 0 && y == 0 {
                [200, 0, 0]
            } else {
                [x, y, 9]
            }
        });
        let found = palette(&similar);
        assert_eq!(found.len(), FLAT_COLOURS + 1);
        assert!(found.contains(&[200, 0, 0]));
    }
}
