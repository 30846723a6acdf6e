// Reads traces back.
#pragma once

#include <zlib.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace nsa {

// The content of a gzip file; empty, which fails the test, when there is none.
inline std::string Unzipped(const std::filesystem::path& path) {
  std::string text;
  gzFile file = gzopen(path.c_str(), "rb");
  EXPECT_NE(file, nullptr) << path;
  if (file == nullptr) return text;
  std::array<char, 4096> part;
  for (int n = 1; n > 0;) {
    n = gzread(file, part.data(), part.size());
    if (n > 0) text.append(part.data(), static_cast<size_t>(n));
  }
  gzclose(file);
  return text;
}

// A trace as JSON, which is checked; null when it is none.
inline nlohmann::json ReadTrace(const std::filesystem::path& path) {
  nlohmann::json trace = nlohmann::json::parse(Unzipped(path), nullptr, false);
  EXPECT_TRUE(trace.is_object()) << path;
  return trace;
}

// Its ranges of this kind ("cat"), in the order of the file.
inline std::vector<nlohmann::json> RangesOf(const nlohmann::json& trace, const std::string& kind) {
  std::vector<nlohmann::json> ranges;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["cat"] == kind) ranges.push_back(event);
  }
  return ranges;
}

inline std::vector<std::string> NamesOf(const std::vector<nlohmann::json>& ranges) {
  std::vector<std::string> names;
  for (const nlohmann::json& range : ranges) names.push_back(range["name"]);
  return names;
}

// Whether one of `outer` contains `range`.
inline bool IsInside(const nlohmann::json& range, const std::vector<nlohmann::json>& outer,
                     double tolerance_microseconds = 0.002) {
  const double begin = range["ts"], end = begin + range["dur"].get<double>();
  for (const nlohmann::json& o : outer) {
    const double from = o["ts"], to = from + o["dur"].get<double>();
    if (from - tolerance_microseconds <= begin && end <= to + tolerance_microseconds) return true;
  }
  return false;
}

}  // namespace nsa
