// The data files in a folder of this machine.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nsa::client {

struct DataFolder {
  std::vector<std::string> patterns;  // "books/*.txt"; the one with the most bytes first
  std::string left_out;               // says that folders in it are left out; empty: it has none
};

// The files directly in `folder` whose names end as those of data do; hidden ones are left out.
// InvalidArgument if there are none.
absl::StatusOr<DataFolder> LookAtFolder(const std::filesystem::path& folder);

// The files of a path or pattern. InvalidArgument if none matches.
absl::StatusOr<std::vector<std::string>> FilesOfWord(const std::string& word);

// The ending by which a file of this name is data: ".jsonl.zst"; empty if it has none.
std::string_view DataEndingOf(std::string_view name);

}  // namespace nsa::client
