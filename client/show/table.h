// A table with aligned columns.
//
//   NAME   STATE    LOSS
//   demo   RUNNING  2.1034
#pragma once

#include <string>
#include <vector>

namespace nsa::client {

// Terminal colours by meaning.
enum class Colour { kNone, kGood, kBusy, kWarning, kBad, kDim, kBold };

// `text` in a colour; unchanged when `enabled` is false.
std::string Paint(Colour colour, const std::string& text, bool enabled);

class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;  // numbers
    int min_width = 0;   // for tables that are printed one row at a time
  };
  struct Cell {
    Cell(std::string t, Colour c = Colour::kNone) : text(std::move(t)), colour(c) {}  // NOLINT
    Cell(const char* t) : text(t) {}                                                  // NOLINT
    std::string text;
    Colour colour = Colour::kNone;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // A row has as many cells as the table has columns.
  // Their text is shown on one line, cleaned (common/base/clean_text.h).
  void Add(std::vector<Cell> row);

  // Title row and rows, with two spaces between columns and none at the end of a line. Without
  // `header` the title row is left out.
  std::string Format(bool colours, bool header = true) const;

  bool empty() const { return rows_.empty(); }
  void Clear() { rows_.clear(); }

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace nsa::client
