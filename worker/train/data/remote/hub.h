// Data sets and models on the Hugging Face Hub: where a file is, and which files a folder has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/data/url.h"

namespace nsa::train {

// ENDPOINT/datasets/OWNER/NAME/resolve/REVISION/PATH, of a model without `datasets/`.
std::string HubFileUrl(std::string_view endpoint, const HubPath& hub);

// ENDPOINT/api/datasets/OWNER/NAME/tree/REVISION/FOLDER, of the folder that a path is in. Models
// have `models` in the place of `datasets`, here and below.
std::string HubFolderUrl(std::string_view endpoint, const HubPath& hub);

// ENDPOINT/api/datasets/OWNER/NAME/revision/REVISION, which says the commit of a revision.
std::string HubRevisionUrl(std::string_view endpoint, const HubPath& hub);

// The commit in such an answer. DataLoss with the reason if it has none.
absl::StatusOr<std::string> ParseHubCommit(std::string_view answer);

struct HubFile {
  std::string path;
  int64_t size = 0;    // bytes; -1: the list does not say
  std::string sha256;  // of a large file, in lower-case hexadecimal digits; empty: not listed
};

// Appends the files of one page of such a list. DataLoss with the reason if it is none.
absl::Status AppendHubFiles(std::string_view page, std::vector<HubFile>* files);

}  // namespace nsa::train
