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
    // For Fit(). Of several that may be left out the one with the highest number is the first.
    int leave_out = 0;       // 0: it is always there
    int shorten_to = 0;      // the columns that a longer text may be shortened to; 0: it is whole
    bool keep_ends = false;  // it is shortened in the middle
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

  // Makes the rows at most `width` wide: leaves out columns, then shortens texts. Of a table
  // without such columns nothing changes. Call it after the last Add().
  void Fit(int width, bool unicode);

  bool empty() const { return rows_.empty(); }
  void Clear() { rows_.clear(); }

 private:
  // The widest text of each column.
  std::vector<int> Widths() const;
  void LeaveOut(size_t column);

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace nsa::client
