#include "client/show/table.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "client/show/human.h"
#include "common/base/clean_text.h"

namespace nsa::client {
namespace {

constexpr int64_t kColumnGap = 2;  // columns between two columns

const char* Code(Colour colour) {
  switch (colour) {
    case Colour::kGood:
      return "32";
    case Colour::kBusy:
      return "36";
    case Colour::kWarning:
      return "33";
    case Colour::kBad:
      return "31";
    case Colour::kDim:
      return "2";
    case Colour::kBold:
      return "1";
    case Colour::kNone:
      break;
  }
  return "";
}

}  // namespace

std::string Paint(Colour colour, const std::string& text, bool enabled) {
  if (!enabled || colour == Colour::kNone || text.empty()) return text;
  return absl::StrCat("\x1B[", Code(colour), "m", text, "\x1B[0m");
}

void Table::Add(std::vector<Cell> row) {
  for (Cell& cell : row) cell.text = CleanLine(cell.text);
  rows_.push_back(std::move(row));
}

std::vector<int> Table::Widths() const {
  std::vector<int> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    int width = std::max(columns_[i].min_width, DisplayWidth(columns_[i].title));
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[i].text));
    widths.push_back(width);
  }
  return widths;
}

void Table::LeaveOut(size_t column) {
  const auto at = static_cast<std::ptrdiff_t>(column);
  columns_.erase(columns_.begin() + at);
  for (auto& row : rows_) row.erase(row.begin() + at);
}

void Table::Fit(int width, bool unicode) {
  std::vector<int> widths = Widths();
  const auto excess = [&] {
    return std::accumulate(widths.begin(), widths.end(), kColumnGap * (std::ssize(widths) - 1)) -
           width;
  };
  // What texts can become shorter counts: a column goes only if that is not enough.
  const auto spare = [&] {
    int64_t all = 0;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].shorten_to > 0) all += std::max(0, widths[i] - columns_[i].shorten_to);
    }
    return all;
  };
  while (excess() > spare()) {
    const auto least = std::ranges::max_element(columns_, {}, &Column::leave_out);
    if (least == columns_.end() || least->leave_out == 0) break;
    const auto at = least - columns_.begin();
    LeaveOut(static_cast<size_t>(at));
    widths.erase(widths.begin() + at);
  }
  for (size_t i = columns_.size(); i-- > 0;) {
    const Column& column = columns_[i];
    if (excess() <= 0 || column.shorten_to == 0 || widths[i] <= column.shorten_to) continue;
    widths[i] = std::max<int>(column.shorten_to, static_cast<int>(widths[i] - excess()));
    for (auto& row : rows_) {
      row[i].text = column.keep_ends ? ClipMiddle(row[i].text, widths[i])
                                     : Shorten(row[i].text, widths[i], unicode);
    }
  }
}

std::string Table::Format(bool colours, bool header) const {
  const std::vector<int> widths = Widths();
  std::string result;
  const auto line = [&](const auto& text_of, const auto& colour_of) {
    std::string text;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string cell = text_of(i);
      const std::string padding(widths[i] - DisplayWidth(cell), ' ');
      const std::string painted = Paint(colour_of(i), cell, colours);
      const bool last = i + 1 == columns_.size();
      absl::StrAppend(&text, columns_[i].right ? padding + painted : painted,
                      columns_[i].right || last ? "" : padding, last ? "" : "  ");
    }
    text.erase(text.find_last_not_of(' ') + 1);
    absl::StrAppend(&result, text, "\n");
  };
  if (header) {
    line([&](size_t i) { return columns_[i].title; }, [](size_t) { return Colour::kBold; });
  }
  for (const auto& row : rows_) {
    line([&](size_t i) { return row[i].text; }, [&](size_t i) { return row[i].colour; });
  }
  return result;
}

}  // namespace nsa::client
