#include "client/show/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/show/human.h"
#include "common/base/clean_text.h"

namespace nsa::client {
namespace {

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

std::string Table::Format(bool colours, bool header) const {
  std::vector<int> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    int width = std::max(columns_[i].min_width, DisplayWidth(columns_[i].title));
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[i].text));
    widths.push_back(width);
  }
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
