#include "worker/train/data/remote/hub.h"

#include "absl/strings/str_cat.h"
#include "common/http/http.h"
#include "nlohmann/json.hpp"

namespace nsa::train {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string ApiUrl(std::string_view endpoint, const HubPath& hub) {
  return absl::StrCat(View(endpoint), hub.model ? "/api/models/" : "/api/datasets/",
                      hub.repository);
}

// What the list says of a file that is kept in Git LFS.
std::string Sha256Of(const nlohmann::json& entry) {
  const auto lfs = entry.find("lfs");
  if (lfs == entry.end() || !lfs->is_object()) return "";
  const auto oid = lfs->find("oid");
  return oid != lfs->end() && oid->is_string() ? oid->get<std::string>() : "";
}

}  // namespace

std::string HubFileUrl(std::string_view endpoint, const HubPath& hub) {
  return absl::StrCat(View(endpoint), hub.model ? "/" : "/datasets/", hub.repository, "/resolve/",
                      hub.revision, "/", EncodePath(hub.path));
}

std::string HubFolderUrl(std::string_view endpoint, const HubPath& hub) {
  const size_t slash = hub.path.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "" : absl::StrCat("/", EncodePath(hub.path.substr(0, slash)));
  return absl::StrCat(ApiUrl(endpoint, hub), "/tree/", hub.revision, folder);
}

std::string HubRevisionUrl(std::string_view endpoint, const HubPath& hub) {
  // Without `expand` the answer lists all files.
  return absl::StrCat(ApiUrl(endpoint, hub), "/revision/", hub.revision, "?expand=sha");
}

absl::StatusOr<std::string> ParseHubCommit(std::string_view answer) {
  const nlohmann::json info = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (info.is_object() && info.contains("sha") && info["sha"].is_string()) {
    auto commit = info["sha"].get<std::string>();
    if (IsHubCommit(commit)) return commit;
  }
  return absl::DataLossError(
      "the Hub does not say the commit of this revision; write it into the URL, as "
      "OWNER/NAME@COMMIT");
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
    files->push_back({.path = entry["path"].get<std::string>(),
                      .size = sized ? entry["size"].get<int64_t>() : -1,
                      .sha256 = Sha256Of(entry)});
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
