#include "worker/train/data/remote/model_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/export/export.h"
#include "common/export/foreign_model.h"
#include "common/export/tensor_stream.h"
#include "common/job/data/sha256.h"
#include "common/run/atomic_file.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/remote/remote.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

constexpr char kConfigFile[] = "config.json";
constexpr char kTokenizerFile[] = "tokenizer.json";
constexpr const char* kOptionalFiles[] = {kTokenizerFile, "tokenizer_config.json",
                                          "chat_template.jinja", "checkpoint_state.json",
                                          kWeightIndexFile};
constexpr absl::Duration kTimeout = absl::Minutes(2);  // without progress

// Of one call.
class ModelFetch {
 public:
  ModelFetch(const std::string& url, fs::path folder, RemoteOptions options)
      : url_(url.substr(0, url.find_last_not_of('/') + 1)),
        folder_(std::move(folder)),
        remote_(std::move(options)) {}

  absl::StatusOr<std::string> Fetch(ModelPart part) {
    NSA_RETURN_IF_ERROR(List());
    NSA_RETURN_IF_ERROR(part == ModelPart::kWeights ? FetchWeights() : FetchDescription());
    return remote_.Commit(url_, &progress_);
  }

 private:
  absl::Status List() {
    NSA_ASSIGN_OR_RETURN(std::vector<HubFile> files, remote_.Folder(url_, &progress_));
    for (HubFile& file : files) {
      std::string name = file.path;
      files_.emplace(std::move(name), std::move(file));
    }
    return absl::OkStatus();
  }

  absl::Status CheckFormat() const {
    if (files_.contains(kWeightIndexFile) || files_.contains(kModelFile)) return absl::OkStatus();
    const auto pickled = std::ranges::find_if(files_, [](const auto& file) {
      return absl::EndsWith(file.first, ".bin") || absl::EndsWith(file.first, ".pth");
    });
    if (pickled == files_.end()) return Missing(kModelFile);
    return absl::NotFoundError(absl::StrCat(
        url_, ": has ", CleanLine(CutText(pickled->first, 100)),
        " and no safetensors (nothing else is read: loading a .bin runs code that is in it); take "
        "a revision with safetensors, often @refs/pr/NUMBER, or convert it with save_pretrained of "
        "transformers and import the folder"));
  }

  absl::Status Missing(const std::string& name) const {
    return absl::NotFoundError(absl::StrCat(
        url_, ": has no ", name, " (needed for an import); name another model or revision"));
  }

  // Models of ours may have bytes as tokens; of others the text is unknown without a tokenizer.
  absl::Status CheckHasTokenizer() const {
    if (files_.contains(kTokenizerFile)) return absl::OkStatus();
    NSA_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(folder_ / kConfigFile));
    const nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    return IsForeign(config) ? Missing(kTokenizerFile) : absl::OkStatus();
  }

  absl::Status FetchDescription() {
    NSA_RETURN_IF_ERROR(CheckFormat());
    NSA_RETURN_IF_ERROR(FetchFile(kConfigFile));
    NSA_RETURN_IF_ERROR(CheckHasTokenizer());
    for (const char* const name : kOptionalFiles) {
      if (files_.contains(name)) NSA_RETURN_IF_ERROR(FetchFile(name));
    }
    return absl::OkStatus();
  }

  // First of all looks whether all are there: each may take an hour.
  absl::Status FetchWeights() {
    const absl::StatusOr<std::set<std::string>> names = WeightFiles(folder_);
    NSA_RETURN_IF_ERROR(Annotate(names.status(), url_));
    for (const std::string& name : *names) {
      if (!files_.contains(name)) return Missing(name);
    }
    for (const std::string& name : *names) NSA_RETURN_IF_ERROR(FetchFile(name));
    return absl::OkStatus();
  }

  absl::Status FetchFile(const std::string& name) {
    const auto listed = files_.find(name);
    if (listed == files_.end()) return Missing(name);
    const std::string url = absl::StrCat(url_, "/", name);
    NSA_ASSIGN_OR_RETURN(const auto from, remote_.Open(url, &progress_));
    const HubFile& file = listed->second;
    if (file.size >= 0 && file.size != from->size()) {
      return absl::DataLossError(
          absl::StrFormat("%s: %d bytes (the Hub lists %d); try again, or name another HF_ENDPOINT",
                          url, from->size(), file.size));
    }
    spdlog::info("{}: {} bytes", url, from->size());
    NSA_ASSIGN_OR_RETURN(NewFile to, NewFile::Create(folder_ / name));
    const absl::Status copied = Copy(url, from.get(), file.sha256, &to);
    std::error_code ignored;
    if (!copied.ok()) fs::remove(folder_ / name, ignored);
    return copied;
  }

  static absl::Status Copy(const std::string& url, RemoteFile* from, const std::string& sha256,
                           NewFile* to) {
    Sha256Sum sum;
    from->ExpectUpTo(from->size());
    std::vector<char> buffer(1 << 20);
    for (int64_t begin = 0; begin < from->size();) {
      const auto count = std::min(std::ssize(buffer), from->size() - begin);
      const std::span<char> part = std::span(buffer).first(static_cast<size_t>(count));
      NSA_RETURN_IF_ERROR(from->ReadAt(begin, part));
      const std::string_view bytes(part.data(), part.size());
      sum.Add(bytes);
      NSA_RETURN_IF_ERROR(to->Append(bytes));
      begin += count;
    }
    NSA_RETURN_IF_ERROR(to->Finish());
    const std::string hash = sum.Hex();
    if (sha256.empty() || hash == sha256) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        url, ": SHA-256 ", hash, " (the Hub lists ", CleanLine(CutText(sha256, 64)),
        "); fetch it again with NSA_DATA_CACHE_BYTES=0, which does without what is kept"));
  }

  const std::string url_;  // without a slash at the end
  const fs::path folder_;
  ReadProgress progress_;
  Remote remote_;
  std::map<std::string, HubFile> files_;  // directly in the repository, by name
};

}  // namespace

absl::StatusOr<std::string> FetchModel(const std::string& url, const fs::path& folder,
                                       ModelPart part, RemoteOptions options) {
  NSA_RETURN_IF_ERROR(CheckHubModel(url));
  options.models = true;
  return ModelFetch(url, folder, std::move(options)).Fetch(part);
}

absl::StatusOr<std::string> FetchModelCommand(const std::string& url, const fs::path& folder,
                                              ModelPart part) {
  // Started by hand: only the user's own permissions count.
  NSA_ASSIGN_OR_RETURN(RemoteOptions options, RemoteOptionsFor({"*"}, kTimeout));
  NSA_ASSIGN_OR_RETURN(const std::string commit, FetchModel(url, folder, part, std::move(options)));
  return nlohmann::json{{"commit", commit}}.dump() + "\n";
}

}  // namespace nsa::train
