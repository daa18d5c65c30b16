//! Rows in columns, each as wide as its widest cell.

/// One line a row.
pub(super) fn columns<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<_> = rows.collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut shown = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        shown += cells.join("  ").trim_end();
        shown.push('\n');
    }
    shown
}
