#include "worker/train/data/remote/hub.h"

#include "absl/strings/str_cat.h"
#include "common/http/http.h"
#include "nlohmann/json.hpp"

namespace nsa::train {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

std::string HubFileUrl(std::string_view endpoint, const HubPath& hub) {
  return absl::StrCat(View(endpoint), "/datasets/", hub.repository, "/resolve/", hub.revision, "/",
                      EncodePath(hub.path));
}

std::string HubFolderUrl(std::string_view endpoint, const HubPath& hub) {
  const size_t slash = hub.path.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "" : absl::StrCat("/", EncodePath(hub.path.substr(0, slash)));
  return absl::StrCat(View(endpoint), "/api/datasets/", hub.repository, "/tree/", hub.revision,
                      folder);
}

std::string HubRevisionUrl(std::string_view endpoint, const HubPath& hub) {
  // Without `expand` the answer lists all files.
  return absl::StrCat(View(endpoint), "/api/datasets/", hub.repository, "/revision/", hub.revision,
                      "?expand=sha");
}

absl::StatusOr<std::string> ParseHubCommit(std::string_view answer) {
  const nlohmann::json info = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (info.is_object() && info.contains("sha") && info["sha"].is_string()) {
    auto commit = info["sha"].get<std::string>();
    if (IsHubCommit(commit)) return commit;
  }
  return absl::DataLossError(
      "the Hub does not say the commit of this revision; write the commit into the URL, "
      "hf://datasets/OWNER/NAME@COMMIT/PATH");
}

absl::Status AppendHubFiles(std::string_view page, std::vector<HubFile>* files) {
  const nlohmann::json list = nlohmann::json::parse(page, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return absl::DataLossError("a list of files that is no JSON array");
  for (const nlohmann::json& entry : list) {
    if (!entry.is_object() || !entry.contains("type") || !entry.contains("path") ||
        !entry["type"].is_string() || !entry["path"].is_string()) {
      return absl::DataLossError("a list of files with an entry without type and path");
    }
    if (entry["type"] != "file") continue;
    const bool sized = entry.contains("size") && entry["size"].is_number_unsigned();
    files->push_back({entry["path"].get<std::string>(), sized ? entry["size"].get<int64_t>() : -1});
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
