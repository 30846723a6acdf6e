// What tests of the token cache share.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/data/prepared/described.h"
#include "tests/worker/train/data/prepared/prepared_jobs.h"
#include "worker/train/data/cache/cache_folder.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/prepared/token_cache.h"

namespace nsa::train {

// Every job is large, and shards are small.
inline TokenCacheOptions CacheIn(const std::filesystem::path& folder,
                                 int64_t most_bytes = 1 << 26) {
  return {.cache = {.folder = folder, .most_bytes = most_bytes},
          .large_bytes = 1,
          .least_free_bytes = 0,
          .shard_bytes = 1 << 20,
          .shard_documents = 17};
}

inline absl::StatusOr<Corpus> LoadWith(const v1::JobSpec& spec, const TokenCacheOptions& cache,
                                       const std::function<bool()>& cancelled = {},
                                       absl::Duration stall = absl::Seconds(20),
                                       std::shared_ptr<Remote> remote = nullptr) {
  const v1::JobSpec full = Full(spec);
  return LoadCorpus(full.data(), full.model().vocab(), stall, {}, cancelled, std::move(remote),
                    cache);
}

// The corpus as text; empty, with a failed expectation, after an error.
inline std::string CorpusWith(const v1::JobSpec& spec, const TokenCacheOptions& cache) {
  const absl::StatusOr<Corpus> corpus = LoadWith(spec, cache);
  EXPECT_OK(corpus);
  return corpus.ok() ? Described(*corpus) : "";
}

// Held in memory.
inline std::string CorpusOfFiles(const v1::JobSpec& spec) { return CorpusWith(spec, {}); }

// The entries of a cache that have an ending, e.g. ".tokens".
inline std::vector<TokenEntry> EntriesIn(const std::filesystem::path& cache,
                                         const std::string& ending = ".tokens") {
  std::vector<TokenEntry> entries;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(cache / "tokens", none)) {
    if (entry.path().extension() != ending) continue;
    entries.emplace_back(cache, entry.path().stem().string());
  }
  return entries;
}

inline v1::JobSpec JobOnLines(const std::string& path) {
  return JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_JSONL);
    data->add_path(path);
    data->set_val_fraction(0.1);
  });
}

// Opens a file of JSON lines in a cache, and calls `on_document` after each document that is
// tokenized.
inline absl::StatusOr<std::optional<PreparedFolder>> OpenWith(
    const TokenCacheOptions& options, const std::filesystem::path& lines,
    const std::function<void()>& on_document, ReadProgress* progress) {
  const v1::JobSpec spec = Full(JobOnLines(lines));
  const auto encoder = DocumentEncoder::Make(spec.data(), 256);
  EXPECT_OK(encoder);
  TokenCache cache(options, progress);
  return cache.Open({.files = TrainingFiles(spec.data())[0],
                     .paths = {lines},
                     .vocab = 256,
                     .tokenizer = spec.data().tokenizer(),
                     .passage_bytes = PassageBytesFor(spec.data()),
                     .on_document =
                         [&](const v1::PreparedManifest&) {
                           on_document();
                           return absl::OkStatus();
                         }},
                    *encoder);
}

}  // namespace nsa::train
