// How much of the bytes of JSON lines passes a filter and is text, from some of the lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/job/data/record_filter.h"

namespace nsa {

struct LineSample {
  bool whole = false;  // all lines of the file were looked at
  double bytes = 0;    // of the lines that were looked at
  double passing = 0;  // of those among them that pass the filter
  double text = 0;     // of the text in these
  FilterTally tally;   // of the filter

  // Bytes of lines that pass in each byte of the file once unpacked. 1 if none was found in a part
  // of the file: others may.
  double PassingShare() const;
  // Bytes of text in each byte of the lines that pass. 1 when they have no text, or the file cannot
  // be read.
  double TextShare() const;
};

// Looks at the lines of a file, packed or not, that are whole in its first `most` bytes once
// unpacked. `text_field`: empty for the default. `filter`: null for all lines. Errors in lines are
// left to who reads the data. Memory: `most`, and what UnpackedHead() says.
LineSample SampleLines(const std::filesystem::path& path, const std::string& text_field,
                       const RecordFilter* filter, int64_t most);

}  // namespace nsa
