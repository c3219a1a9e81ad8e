//! The control plane as a picture: clients, this bridge, and the servers that it reaches.

use std::fmt::Write as _;

use super::html::{Escaped, short_number, shortened};
use crate::status::{Server, ServerState, StatusDocument};

/// Where things stand, in units of the picture.
struct Layout {
    class: &'static str,
    width: u32,
    /// The bridge: left, top, width.
    bridge: (u32, u32, u32),
    /// The boxes of the servers: left, top of the first, width, height.
    server: (u32, u32, u32, u32),
    /// Whether the wires leave the bridge to the right; otherwise downwards.
    is_sideways: bool,
    /// Characters in a line of a box.
    line_chars: usize,
}

const WIDE: Layout = Layout {
    class: "wide",
    width: 760,
    bridge: (0, 0, 172),
    server: (290, 4, 466, 96),
    is_sideways: true,
    line_chars: 68,
};

const NARROW: Layout = Layout {
    class: "narrow",
    width: 360,
    bridge: (26, 0, 330),
    server: (26, 116, 330, 112),
    is_sideways: false,
    line_chars: 46,
};

/// The space between two boxes.
const SERVER_BOX_GAP: u32 = 14;

const BRIDGE_HEIGHT: u32 = 92;

/// The picture for wide and for narrow screens.
pub(super) fn picture(document: &StatusDocument) -> String {
    [WIDE, NARROW].iter().map(|it| draw(document, it)).collect()
}

fn draw(document: &StatusDocument, layout: &Layout) -> String {
    let (left, first_top, width, height) = layout.server;
    let count = u32::try_from(document.servers.len()).unwrap_or(u32::MAX);
    let bottom = first_top + count.saturating_mul(height + SERVER_BOX_GAP);
    let total = bottom.max(layout.bridge.1 + BRIDGE_HEIGHT + SERVER_BOX_GAP);
    let (bridge_left, mut bridge_top, bridge_width) = layout.bridge;
    if layout.is_sideways {
        bridge_top = (total - SERVER_BOX_GAP).saturating_sub(BRIDGE_HEIGHT) / 2;
    }
    let mut out = format!(
        "<svg class=\"picture {}\" viewBox=\"0 0 {} {total}\" role=\"img\" aria-label=\"{}\">",
        layout.class,
        layout.width,
        Escaped(&text_alternative(document))
    );
    for (server, row) in document.servers.iter().zip(0..) {
        let top = first_top + row * (height + SERVER_BOX_GAP);
        let middle = top + height / 2;
        let path = if layout.is_sideways {
            let (from, start) = (bridge_left + bridge_width, bridge_top + BRIDGE_HEIGHT / 2);
            let bend = u32::midpoint(from, left);
            format!("M{from} {start}C{bend} {start} {bend} {middle} {left} {middle}")
        } else {
            let (from, start) = (12, bridge_top + BRIDGE_HEIGHT / 2);
            format!("M{bridge_left} {start}H{from}V{middle}H{left}")
        };
        let state = state_class(server.state);
        let busy = if per_second(document, server) >= 0.1 {
            " busy"
        } else {
            ""
        };
        let _ = write!(out, "<path class=\"wire {state}{busy}\" d=\"{path}\"/>");
        draw_server(
            &mut out,
            document,
            server,
            (left, top, width, height),
            layout,
        );
    }
    draw_bridge(&mut out, document, (bridge_left, bridge_top, bridge_width));
    out.push_str("</svg>");
    out
}

fn draw_bridge(out: &mut String, document: &StatusDocument, (left, top, width): (u32, u32, u32)) {
    let bridge = &document.bridge;
    let (state, words) = match (bridge.ready, bridge.draining) {
        (_, true) => ("bad", "shutting down"),
        (true, _) => ("good", "ready"),
        (false, _) => ("bad", "not ready"),
    };
    let watches: usize = document.open.iter().map(|it| it.count).sum();
    let x = left + 14;
    let _ = write!(
        out,
        "<g class=\"box bridge {state}\"><rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{BRIDGE_HEIGHT}\" rx=\"10\"/>\
         {}<text class=\"name\" x=\"{}\" y=\"{}\">This bridge</text>\
         <text x=\"{x}\" y=\"{}\">{words}, version {}</text>\
         <text x=\"{x}\" y=\"{}\">{} requests/s</text>\
         <text x=\"{x}\" y=\"{}\">{watches} watches and streams</text></g>",
        icon(state, left + 20, top + 20),
        left + 34,
        top + 25,
        top + 45,
        Escaped(&shortened(&bridge.version, 12)),
        top + 62,
        short_number(document.traffic.per_second),
        top + 79,
    );
}

fn draw_server(
    out: &mut String,
    document: &StatusDocument,
    server: &Server,
    (left, top, width, height): (u32, u32, u32, u32),
    layout: &Layout,
) {
    let state = state_class(server.state);
    let role = if server.local {
        "behind this bridge"
    } else {
        "peer"
    };
    let problem = server
        .problem
        .as_deref()
        .filter(|_| !server.state.is_good());
    let first = match problem {
        Some(problem) => format!("{}: {problem}", server.state.as_str()),
        None => format!(
            "{}, {role}, {} requests/s",
            server.state.as_str(),
            short_number(per_second(document, server))
        ),
    };
    let mut second = vec![
        server
            .address
            .clone()
            .unwrap_or_else(|| "no address known".to_owned()),
    ];
    if !server.local {
        second.push(match (server.bridge, server.bridge_left) {
            (_, true) => "its bridge has left".to_owned(),
            (true, _) => "with a bridge".to_owned(),
            (false, _) => "without a bridge".to_owned(),
        });
    }
    if let Some(expires) = &server.certificate_expires {
        second.push(format!(
            "certificate until {}",
            expires.get(..10).unwrap_or(expires)
        ));
    }
    let third = match server.serves_alone.len() {
        0 => format!("{} APIs, each also elsewhere", server.apis),
        alone => format!("{} APIs, {alone} only here", server.apis),
    };
    let lines = [
        first,
        second.join(" · "),
        format!("{third} · {}", reached_by_text(server)),
    ];
    let _ = write!(
        out,
        "<g class=\"box {state}\"><title>{}</title>\
         <rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>{}\
         <text class=\"name\" x=\"{}\" y=\"{}\">{}</text>\
         <text class=\"version\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
        Escaped(&server.identity),
        icon(state, left + 20, top + 20),
        left + 34,
        top + 25,
        Escaped(&shortened(server.name(), layout.line_chars / 2)),
        left + width - 14,
        top + 25,
        Escaped(&shortened(&server.version_text(), layout.line_chars / 2)),
    );
    let step = if layout.is_sideways { 18 } else { 20 };
    for (line, row) in lines.iter().zip(0..) {
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\">{}</text>",
            left + 14,
            top + 48 + row * step,
            Escaped(&shortened(line, layout.line_chars)),
        );
    }
    out.push_str("</g>");
}

/// Requests of this bridge to a server.
fn per_second(document: &StatusDocument, server: &Server) -> f64 {
    let rows = document.traffic.rows.iter();
    let rows = rows.filter(|row| row.server.as_deref() == Some(server.name()));
    rows.map(|row| row.per_second).sum()
}

fn reached_by_text(server: &Server) -> String {
    let names = |reached: bool| {
        let those = server.reached_by.iter().filter(|it| it.reached == reached);
        those
            .map(|it| it.bridge.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let count = server.reached_by.len();
    if count > 1 && server.reached_by.iter().all(|it| it.reached) {
        return format!("reached by {count} bridges");
    }
    match (names(true), names(false)) {
        (all, none) if none.is_empty() && all.is_empty() => "no bridge reports".to_owned(),
        (all, none) if none.is_empty() => format!("reached by {all}"),
        (all, none) if all.is_empty() => format!("not reached by {none}"),
        (some, others) => format!("reached by {some}, not by {others}"),
    }
}

/// A mark that differs in shape and not only in colour.
fn icon(state: &str, x: u32, y: u32) -> String {
    let mark = match state {
        "good" => format!("M{} {y}l3 4l6 -7", x - 4),
        "bad" => format!("M{} {}l8 8m0 -8l-8 8", x - 4, y - 4),
        _ => format!("M{} {y}h8", x - 4),
    };
    format!(
        "<circle class=\"mark\" cx=\"{x}\" cy=\"{y}\" r=\"9\"/><path class=\"mark\" d=\"{mark}\"/>"
    )
}

pub(super) fn state_class(state: ServerState) -> &'static str {
    match state {
        ServerState::Ready | ServerState::Reachable => "good",
        ServerState::NotReady | ServerState::Unreachable => "bad",
        ServerState::Unknown => "unknown",
    }
}

/// The text alternative of the picture.
fn text_alternative(document: &StatusDocument) -> String {
    let servers = document.servers.iter().map(|server| {
        format!(
            "{}: {}, {}",
            server.name(),
            server.version_text(),
            server.state.as_str()
        )
    });
    let servers: Vec<_> = servers.collect();
    format!(
        "This bridge and the servers: {}. The table of servers has the details.",
        servers.join("; ")
    )
}
