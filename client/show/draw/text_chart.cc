#include "client/show/draw/text_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/show/draw/axis.h"
#include "client/show/human.h"
#include "common/base/clean_text.h"

namespace nsa::client {
namespace {

constexpr int kLegendColumns = 40;
constexpr int kLabelColumns = 12;
constexpr int kLetterEvery = 12;  // columns from one letter on a curve to its next
constexpr int kLetterShift =
    3;  // columns that a curve's first letter is behind that of the one before

// Whether curves have letters, because neither colours nor dots distinguish them.
struct Letters {
  bool lines = false;
  bool measurements = false;
};

Letters LettersOf(const Chart& chart, const TextSize& size) {
  if (!size.unicode) return {true, true};
  if (size.colours) return {};
  const auto dots = std::ranges::count_if(chart.curves, [](const auto& c) { return c.dots; });
  return {std::ssize(chart.curves) - dots > 1, dots > 1};
}

char LetterOf(const Curve& curve) {
  return static_cast<char>((curve.dots ? 'A' : 'a') + curve.colour % kColours);
}

// What a terminal has of the eight colours: blue, yellow, green, magenta, red, cyan, and the bright
// ones of the last two.
std::string InColour(int colour, const std::string& text, bool enabled) {
  static constexpr std::array<const char*, kColours> kCodes = {"94", "33", "32", "35",
                                                               "31", "36", "95", "90"};
  if (!enabled) return text;
  return absl::StrCat("\x1B[", kCodes[colour % kColours], "m", text, "\x1B[0m");
}

// Places for characters, each of them two dots wide and four high.
class Canvas {
 public:
  Canvas(int columns, int rows) : columns_(columns), cells_(columns * rows) {}

  int dots_wide() const { return 2 * columns_; }
  int dots_high() const { return 4 * static_cast<int>(cells_.size()) / columns_; }

  // `y` counts from the top.
  void Dot(int x, int y, int colour) {
    // The bits of U+2800 by column and row.
    static constexpr int kBits[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    Cell& cell = cells_[y / 4 * columns_ + x / 2];
    if (!cell.sign.empty()) return;
    cell.bits |= kBits[x % 2][y % 4];
    cell.colour = colour;
  }

  void Line(int x1, int y1, int x2, int y2, int colour) {
    const int steps = std::max({std::abs(x2 - x1), std::abs(y2 - y1), 1});
    for (int i = 0; i <= steps; ++i) {
      const double share = static_cast<double>(i) / steps;
      Dot(static_cast<int>(std::lround(x1 + share * (x2 - x1))),
          static_cast<int>(std::lround(y1 + share * (y2 - y1))), colour);
    }
  }

  // A measurement or the letter of a curve, which covers lines.
  void Sign(int x, int y, int colour, const std::string& sign) {
    Cell& cell = cells_[y / 4 * columns_ + x / 2];
    cell.sign = sign;
    cell.colour = colour;
  }

  // Without `unicode` lines are letters instead of dots.
  std::string Row(int row, bool unicode, bool colours) const {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const Cell& cell = cells_[row * columns_ + column];
      text += InColour(cell.colour, Character(cell, unicode),
                       colours && (cell.bits != 0 || !cell.sign.empty()));
    }
    return text;
  }

 private:
  struct Cell {
    int bits = 0;
    std::string sign;
    int colour = 0;
  };

  static std::string Character(const Cell& cell, bool unicode) {
    if (!cell.sign.empty()) return cell.sign;
    if (cell.bits == 0) return " ";
    if (!unicode) return std::string(1, static_cast<char>('a' + cell.colour));
    // U+2800 and above in UTF-8.
    return {'\xE2', static_cast<char>(0xA0 | (cell.bits >> 6)),
            static_cast<char>(0x80 | (cell.bits & 0x3F))};
  }

  const int columns_;
  std::vector<Cell> cells_;
};

// Puts the letter of a curve on some of its points, `index` curves being before it.
void DrawLetters(const Curve& curve, int index, const Axis& x_axis, const Axis& y_axis,
                 Canvas* canvas) {
  const int wide = canvas->dots_wide() - 1;
  const int high = canvas->dots_high() - 1;
  const std::string letter(1, LetterOf(curve));
  int next = kLetterShift * index;  // column
  int x = -1;
  int y = 0;
  bool any = false;
  for (const Bucket& bucket : Thin(curve, canvas->dots_wide())) {
    if (!std::isfinite(bucket.mean)) continue;
    x = static_cast<int>(std::lround(Place(x_axis, bucket.x) * wide));
    y = static_cast<int>(std::lround((1 - Place(y_axis, bucket.mean)) * high));
    if (x / 2 < next) continue;
    canvas->Sign(x, y, curve.colour % kColours, letter);
    next = x / 2 + kLetterEvery;
    any = true;
  }
  if (!any && x >= 0) canvas->Sign(x, y, curve.colour % kColours, letter);
}

// `join`: lines between the points of the curve. `sign`: of a measurement. `nonfinite`: of values
// that have no place.
void Draw(const Curve& curve, bool join, const std::string& sign, const std::string& nonfinite,
          const Axis& x_axis, const Axis& y_axis, Canvas* canvas) {
  const int wide = canvas->dots_wide() - 1;
  const int high = canvas->dots_high() - 1;
  const int colour = curve.colour % kColours;
  bool joined = false;
  int last_x = 0;
  int last_y = 0;
  for (const Bucket& bucket : Thin(curve, canvas->dots_wide())) {
    const int x = static_cast<int>(std::lround(Place(x_axis, bucket.x) * wide));
    if (bucket.nonfinite > 0) canvas->Sign(x, high, colour, nonfinite);
    if (!std::isfinite(bucket.mean)) {
      joined = false;
      continue;
    }
    const int y = static_cast<int>(std::lround((1 - Place(y_axis, bucket.mean)) * high));
    if (joined) canvas->Line(last_x, last_y, x, y, colour);
    if (curve.dots) {
      canvas->Sign(x, y, colour, sign);
    } else if (!joined) {
      canvas->Dot(x, y, colour);
    }
    joined = join;
    last_x = x;
    last_y = y;
  }
}

// "●" or a letter.
std::string SignOf(const Curve& curve, const Letters& letters) {
  if (letters.measurements) return std::string(1, LetterOf(curve));
  return "●";
}

void DrawCurves(const Chart& chart, const Letters& letters, const std::string& nonfinite,
                const Axis& x_axis, const Axis& y_axis, Canvas* canvas) {
  // Beside lines, measurements are points alone: a line through them would cover the other.
  const bool lines_too = std::ranges::any_of(chart.curves, [](const auto& c) { return !c.dots; });
  for (const Curve& curve : chart.curves) {
    if (!curve.dots) Draw(curve, true, "", nonfinite, x_axis, y_axis, canvas);
  }
  int index = 0;
  for (const Curve& curve : chart.curves) {
    if (!curve.dots && letters.lines) DrawLetters(curve, index++, x_axis, y_axis, canvas);
  }
  for (const Curve& curve : chart.curves) {
    if (curve.dots)
      Draw(curve, !lines_too, SignOf(curve, letters), nonfinite, x_axis, y_axis, canvas);
  }
}

std::string Legend(const Chart& chart, const TextSize& size, const Letters& letters) {
  std::string text;
  for (const Curve& curve : chart.curves) {
    if (curve.name.empty()) continue;
    const std::string sign = curve.dots      ? SignOf(curve, letters)
                             : letters.lines ? std::string(1, LetterOf(curve))
                                             : "━";
    absl::StrAppend(&text, text.empty() ? "" : "   ",
                    InColour(curve.colour % kColours, sign, size.colours), " ",
                    LegendText(curve, chart.y_unit, kLegendColumns));
  }
  return text;
}

std::string Padded(const std::string& text, int width) {
  return std::string(std::max(0, width - DisplayWidth(text)), ' ') + text;
}

// The line of numbers below the horizontal axis; those that would touch another are left out.
std::string Numbers(const Axis& axis, int columns) {
  std::string line;
  int used = 0;
  for (const double tick : axis.ticks) {
    const std::string text = TickText(axis, tick);
    const int width = DisplayWidth(text);
    const int middle = static_cast<int>(std::lround(Place(axis, tick) * (columns - 1)));
    const int from = std::clamp(middle - width / 2, 0, std::max(0, columns - width));
    if (from < used + (used > 0 ? 2 : 0) || from + width > columns) continue;
    line += std::string(from - used, ' ') + text;
    used = from + width;
  }
  return line;
}

// The labels of the rows, from the top; empty where there is none.
std::vector<std::string> RowLabels(const Axis& axis, int rows) {
  std::vector<std::string> labels(rows);
  for (const double tick : axis.ticks) {
    labels[std::lround((1 - Place(axis, tick)) * (rows - 1))] =
        Clip(TickText(axis, tick), kLabelColumns);
  }
  return labels;
}

}  // namespace

std::vector<std::string> TextChart(const Chart& chart, const TextSize& size) {
  const int columns = std::max(size.columns, 30);
  const int rows = std::max(size.rows, 4);
  const Letters letters = LettersOf(chart, size);
  std::vector<std::string> lines;
  const std::string nonfinite = size.unicode ? "×" : "x";
  const std::string note = NonfiniteNote(chart, nonfinite);
  const Axis y_axis = VerticalAxis(chart, std::max(2, rows / 3));
  const std::string above =
      y_axis.above == 0 ? "" : absl::StrCat("; up to ", ValueText(y_axis.above, y_axis.unit));
  lines.push_back(absl::StrCat(chart.title, chart.note.empty() ? "" : ", ", chart.note, above,
                               note.empty() ? "" : "; ", note));
  if (std::string names = Legend(chart, size, letters); !names.empty()) lines.push_back(names);
  if (!HasFinite(chart)) {
    lines.emplace_back(note.empty() ? "  no values yet" : "  no finite values");
    for (std::string& line : lines) line = Shorten(line, columns, size.unicode);
    return lines;
  }
  const std::vector<std::string> labels = RowLabels(y_axis, rows);
  int margin = 0;
  for (const std::string& label : labels) margin = std::max(margin, DisplayWidth(label));
  Canvas canvas(columns - margin - 2, rows);
  const Axis x_axis = HorizontalAxis(chart, std::max(2, canvas.dots_wide() / 28));
  DrawCurves(chart, letters, nonfinite, x_axis, y_axis, &canvas);
  for (int row = 0; row < rows; ++row) {
    const char* wall =
        labels[row].empty() ? (size.unicode ? "│" : "|") : (size.unicode ? "┤" : "+");
    std::string area = canvas.Row(row, size.unicode, size.colours);
    area.erase(area.find_last_not_of(' ') + 1);
    lines.push_back(absl::StrCat(Padded(labels[row], margin), " ", wall, area));
  }
  const int wide = columns - margin - 2;
  std::string floor(margin + 1, ' ');
  floor += size.unicode ? "└" : "+";
  for (int i = 0; i < wide; ++i) floor += size.unicode ? "─" : "-";
  lines.push_back(floor);
  lines.push_back(std::string(margin + 2, ' ') + Numbers(x_axis, wide));
  lines.push_back(Padded(chart.x_name, margin + 2 + (wide + DisplayWidth(chart.x_name)) / 2));
  for (std::string& line : lines) line = Shorten(line, columns, size.unicode);
  return lines;
}

}  // namespace nsa::client
