// What the rules about data share: the files of a job and whether they can be read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/job/data/data_files.h"
#include "common/job/data/file_text.h"
#include "common/job/data/line_sample.h"
#include "common/job/data/prepared.h"
#include "common/job/data_source.h"
#include "common/preflight/rules.h"

namespace nsa {

// Whether the job's training tokens are generated rather than read.
bool IsGenerated(const v1::DataSpec& data);

// Whether the rules may look at the job's files.
bool MayLook(const PreflightFacts& facts);

struct NamedFile {
  std::string field;  // "data.path[0]"
  std::string path;
  const DataSourceInfo* source;
  std::string text_field;
  bool conversations = false;
  std::shared_ptr<const RecordFilter> filter;  // null: all records are read

  // Whether it is a folder of prepared data, or at least a folder in its place.
  bool prepared() const;
};

// The files of all sets. If the rules may look, each pattern is replaced by the files that match;
// one that none matches stays as it is. At most kMostMatches: DATA_UNREADABLE refuses more.
std::vector<NamedFile> FilesOf(const PreflightFacts& facts, const std::vector<DataFiles>& all);

// Of all files that the job names.
std::vector<NamedFile> AllFiles(const PreflightFacts& facts);

// A sample of the lines of a local file of JSON lines that is one of `files` of its set, taken once
// for all rules: with a filter as many as can be read in a second, else the first kSampleBytes.
const LineSample& SampleOf(const PreflightFacts& facts, const NamedFile& file, size_t files);

bool HasEnding(const std::string& path, std::span<const std::string_view> endings);

// Why a file cannot be read, or nullopt.
std::optional<std::string> ReadFault(const std::string& path);

// How much rules read of a file in one place (FilePart()). What cannot be read is reported by
// DATA_UNREADABLE.
inline constexpr int64_t kSampleBytes = 64 << 10;

// Rules that look into files at several places do so in the first files only, so that preflight
// takes seconds for any number of them.
inline constexpr int kMostSampledFiles = 32;

// The two halves of a message "what: value (limit); what to do".
struct ProblemAndFix {
  std::string problem;
  std::string fix;
};
ProblemAndFix SplitFix(std::string_view message);

// A text of the job in a message: the first 100 bytes, on one line.
std::string Shown(std::string_view text);

}  // namespace nsa
