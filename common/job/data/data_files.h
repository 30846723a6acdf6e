// The files that a job's `data` names: of one source, of each source of data.mix, and for
// validation. Preflight, the coordinator's guard and the worker all ask here, so that they see the
// same files.
//
// A path may be a pattern: `*`, `?` and `[…]` in its last part, the name of the file, stand for all
// files of that folder that match, in the order of their names. A file whose name is the pattern
// itself is meant literally, and so are the names of folders: `data [v2]/*.jsonl` are the files of
// `data [v2]`. Names that begin with a dot match only a pattern that does so too.
//
// A path may also be a URL (url.h). Nothing here opens a connection: of hf:// patterns only the
// worker knows the files (worker/train/data/remote/).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/data/record_filter.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

// What to do about a data file that is not there or cannot be read.
inline constexpr std::string_view kGiveReadableFile =
    "give a file that exists and is readable on the machine that runs the job";

// Files that are read one after another, from one source.
struct DataFiles {
  std::string name;   // data.mix[].name, or of a set of data.val; empty for others
  std::string field;  // "data.path", "data.mix[1].path", "data.val_path", "data.val.code"
  v1::DataSource source = v1::DATA_SOURCE_UNSPECIFIED;
  std::vector<std::string> paths;              // files and patterns
  int first = 0;                               // index in the field of paths[0]
  std::string text_field;                      // of sources with fields
  bool conversations = false;                  // a document is one; text_field has its messages
  double weight = 1;                           // data.mix[].weight
  std::shared_ptr<const RecordFilter> filter;  // of the records that are read; null: all of them
  bool filter_is_shared = false;               // with another list: data.path and data.val_path

  // "data.path[0]" for paths[0]; a map's value has no index.
  std::string FieldOf(size_t path) const;
};

// OK unless the records of a set were all read and none of them passes its filter: then
// InvalidArgument, naming the key and what is wrong.
absl::Status CheckFilter(const DataFiles& files, const FilterTally& all);

// What is wrong with the filter of a set whose records were all read, for people: a field or a
// value that none of them has. Nothing for two lists that share a filter.
std::vector<v1::DataWarning> FilterWarnings(const DataFiles& files, const FilterTally& all);

// "data.except.source: none of 300 records has the value 'x'; check the spelling".
std::string WarningText(const v1::DataWarning& warning);

// Without data.mix one element, also for a source that has no files; with it one for each source.
std::vector<DataFiles> TrainingFiles(const v1::DataSpec& data);

// The files of data.val_path: of data.source, or with data.mix of the source that the ending of
// each name says: tokens for prepared folders (kPreparedEnding), else TextSourceOf(). Empty without
// val_path.
std::vector<DataFiles> ValidationFiles(const v1::DataSpec& data);

// The sets of data.val, in the order of their names. Their sources are those of the endings.
std::vector<DataFiles> NamedValidationFiles(const v1::DataSpec& data);

// All of the above, in this order.
std::vector<DataFiles> AllDataFiles(const v1::DataSpec& data);

// Whether all training files are token files: then no tokenizer is needed, and data.separator may
// be set. False for generated tokens.
bool ReadsOnlyTokens(const v1::DataSpec& data);

// Whether a tokenizer is needed, for training or for validation.
bool ReadsText(const v1::DataSpec& data);

// data.text_field or its default, which is that of the messages with data.loss_on: assistant.
std::string TextFieldOf(const v1::DataSpec& data);

// Whether the last part of a path or hf:// URL has `*`, `?` or `[`.
bool IsPattern(std::string_view path);

// At most so many files, and so many entries of folders that are looked through.
inline constexpr size_t kMostMatches = 100'000;
inline constexpr size_t kMostEntries = 2'000'000;

// Finds the files that paths stand for: those that match a pattern, or the path itself, which may
// not exist. A URL stands for itself. The limits are those of all paths together, and a path that
// was asked before costs nothing.
class PathExpander {
 public:
  // Null, or returns true when nobody needs the result any more; that is then Cancelled.
  explicit PathExpander(std::function<bool()> abandoned = nullptr)
      : abandoned_(std::move(abandoned)) {}

  // InvalidArgument for a wildcard before the last part of the path, if there is no folder of that
  // very name, and beyond the limits; NotFound if nothing matches, or if the folder cannot be read.
  // The messages begin with the path. The result stays until the next call.
  const absl::StatusOr<std::vector<std::string>>& Expand(const std::string& path);

 private:
  absl::StatusOr<std::vector<std::string>> Find(const std::string& path);
  absl::StatusOr<std::vector<std::string>> Matches(const std::string& pattern);

  const std::function<bool()> abandoned_;
  size_t entries_ = 0;
  size_t matches_ = 0;
  std::map<std::string, absl::StatusOr<std::vector<std::string>>> known_;  // patterns only
  absl::StatusOr<std::vector<std::string>> last_ = std::vector<std::string>();
};

// The files of one path.
absl::StatusOr<std::vector<std::string>> ExpandPath(const std::string& path);

}  // namespace nsa
