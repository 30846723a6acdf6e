#include "worker/train/data/fingerprint.h"

#include <xxhash.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/job/data/url.h"

namespace nsa::train {

Fingerprint::Fingerprint() : all_(XXH3_createState()), documents_(XXH3_createState()) {
  XXH3_128bits_reset(all_);
  XXH3_64bits_reset(documents_);
}

Fingerprint::~Fingerprint() {
  XXH3_freeState(all_);
  XXH3_freeState(documents_);
}

void Fingerprint::AddFile(const std::string& path, int64_t size, const std::string& shown,
                          const std::string& version) {
  const std::string name = std::filesystem::path(WithoutQuery(path)).filename().string();
  std::string line = absl::StrCat(name, "\n", size, "\n");
  if (!version.empty()) absl::StrAppend(&line, version, "\n");
  XXH3_128bits_update(all_, line.data(), line.size());
  parts_.push_back({std::string(WithoutQuery(shown)),
                    absl::StrCat(size, " bytes", version.empty() ? "" : " of version ", version)});
}

void Fingerprint::AddStream(int64_t window) {
  const std::string line = absl::StrCat("stream\n", window, "\n");
  XXH3_128bits_update(all_, line.data(), line.size());
  parts_.push_back({"data.shuffle_window", Count(window, "sequence")});
}

void Fingerprint::AddFilter(const RecordFilter& filter) {
  const std::string identity = filter.Identity();
  const std::string line = absl::StrCat("filter\n", identity);
  XXH3_128bits_update(all_, line.data(), line.size());
  parts_.push_back({filter.Keys(), absl::StrFormat("values with the hash %016x",
                                                   XXH3_64bits(identity.data(), identity.size()))});
}

void Fingerprint::AddHeldOut(int64_t tokens) {
  const std::string line = absl::StrCat("held out\n", tokens, "\n");
  XXH3_128bits_update(all_, line.data(), line.size());
  parts_.push_back({"data.val_fraction", Count(tokens, "token")});
}

void Fingerprint::Begin(const std::vector<std::string>& paths) {
  EndDocuments();
  if (paths.empty()) return;
  const auto others = static_cast<int64_t>(paths.size()) - 1;
  const std::string first(WithoutQuery(paths.front()));
  name_ = others == 0 ? first : absl::StrCat(first, " and ", Count(others, "other file"));
}

void Fingerprint::Add(const DocumentHash& hash) {
  XXH3_128bits_update(all_, &hash, sizeof(hash));
  XXH3_64bits_update(documents_, &hash, sizeof(hash));
}

void Fingerprint::EndDocuments() {
  if (name_.empty()) return;
  parts_.push_back({std::exchange(name_, ""), absl::StrFormat("documents with the hash %016x",
                                                              XXH3_64bits_digest(documents_))});
  XXH3_64bits_reset(documents_);
}

std::string Fingerprint::Finish() {
  EndDocuments();
  const XXH128_hash_t hash = XXH3_128bits_digest(all_);
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace nsa::train
