// Jobs of every source, and their prepared data.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/load.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/data_files.h"
#include "tests/worker/train/data/read/parquet_writer.h"
#include "worker/train/data/prepared/prepare.h"

namespace nsa::train {

// `count` JSON lines; every seventh is a copy of an earlier one.
inline std::string Lines(int count, const std::string& field = "text") {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const int which = i % 7 == 6 ? i / 2 : i;
    absl::StrAppend(&lines, "{\"", field, "\": \"document ", which, " ",
                    std::string(static_cast<size_t>(which * 37 % 90), 'a' + which % 26), "\"}\n");
  }
  return lines;
}

// `count` JSON lines with a field `kind`, which is 0, 1 or 2 in turn.
inline std::string LinesOfKinds(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&lines, "{\"kind\": ", i % 3, ", \"text\": \"document ", i, " ",
                    std::string(static_cast<size_t>(i * 37 % 90), 'a' + i % 26), "\"}\n");
  }
  return lines;
}

// Little-endian uint16: documents of 1 to 40 tokens, each behind `separator`.
inline std::string TokenFile(int documents, int separator) {
  std::string bytes;
  const auto add = [&](int token) {
    bytes += {static_cast<char>(token), static_cast<char>(token >> 8)};
  };
  for (int i = 0; i < documents; ++i) {
    add(separator);
    for (int t = 0; t <= i * 13 % 40; ++t) add(1 + (i * 31 + t) % 998);
  }
  return bytes;
}

// The same as a file of llm.c with tokens of four bytes, which are up to 149,701.
inline std::string WideTokenFile(int documents, int separator) {
  const std::string narrow = TokenFile(documents, separator);
  const auto tokens = static_cast<int32_t>(narrow.size() / 2);
  std::vector<int32_t> all(256);
  all[0] = 20240801, all[1] = 7, all[2] = tokens;
  for (size_t i = 0; i < narrow.size(); i += 2) {
    const int token =
        static_cast<unsigned char>(narrow[i]) | static_cast<unsigned char>(narrow[i + 1]) << 8;
    all.push_back(token == separator ? separator : 1 + 150 * token);
  }
  return {reinterpret_cast<const char*>(all.data()), all.size() * sizeof(int32_t)};
}

// A job that has its defaults except for the data.
inline v1::JobSpec JobOn(const std::function<void(v1::DataSpec*)>& data, int32_t vocab = 256) {
  v1::JobSpec spec;
  spec.set_name("prepared");
  spec.mutable_model()->set_vocab(vocab);
  spec.mutable_train()->set_seq_len(16);
  spec.mutable_train()->set_batch_size(4);
  spec.mutable_train()->set_eval_batches(3);
  data(spec.mutable_data());
  return spec;
}

inline void AddMix(v1::DataSpec* data, const std::string& name, v1::DataSource source,
                   const std::string& path, double weight) {
  v1::MixSource* const mix = data->add_mix();
  mix->set_name(name);
  mix->set_source(source);
  mix->add_path(path);
  mix->set_weight(weight);
}

// The files that the jobs below read.
inline void WriteFilesOfEverySource(const TempDir& dir) {
  Write(dir / "train.jsonl", Lines(300));
  Write(dir / "more.jsonl.gz", Gzip(Lines(40)));
  Write(dir / "kinds.jsonl", LinesOfKinds(200));
  Write(dir / "body.jsonl.zst", Zstd(Lines(120, "body")));
  Write(dir / "val.jsonl", Lines(20));
  std::string text;
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&text, "paragraph ", i * i, "\n\n");
  Write(dir / "a.txt", text);
  Write(dir / "b.txt", std::string("a text with two \0 in \0 it, which is not so short", 48));
  Write(dir / "tokens.bin", TokenFile(200, 999));
  Write(dir / "many.bin", TokenFile(2000, 999));
  Write(dir / "rows.parquet",
        ParquetText({"one", std::nullopt, "two two", "three three three", "", "two two"}, {})
            .Write());
  Write(dir / "wide.bin", WideTokenFile(200, 999));
}

using JobsByName = std::map<std::string, v1::JobSpec>;

inline void AddJobsOnLines(const TempDir& dir, JobsByName* all) {
  JobsByName& jobs = *all;
  jobs["jsonl, fraction"] = JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_JSONL);
    data->add_path(dir / "*.jsonl");
    data->add_path(dir / "more.jsonl.gz");
    data->set_val_fraction(0.1);
  });
  jobs["jsonl, val_path and sets"] = JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_JSONL);
    data->add_path(dir / "train.jsonl");
    data->add_val_path(dir / "val.jsonl");
    (*data->mutable_val())["short"] = dir / "b.txt";
    (*data->mutable_val())["long"] = dir / "a.txt";
    data->set_document_mask(true);
  });
  jobs["jsonl, chosen by a field"] = JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_JSONL);
    data->add_path(dir / "kinds.jsonl");
    data->set_val_fraction(0.1);
    (*data->mutable_except())["kind"].add_value("2");
    (*data->mutable_val())["kind"] = dir / "kinds.jsonl";
    (*(*data->mutable_val_where())["kind"].mutable_field())["kind"].add_value("2");
  });
  jobs["text, the default fraction"] = JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_TEXT);
    data->add_path(dir / "a.txt");
    data->add_path(dir / "b.txt");
  });
  jobs["text, a fraction that holds out one"] = JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_TEXT);
    data->add_path(dir / "a.txt");
    data->set_val_fraction(1e-9);
  });
}

inline void AddJobsOnTokens(const TempDir& dir, JobsByName* all) {
  JobsByName& jobs = *all;
  jobs["tokens"] = JobOn(
      [&](v1::DataSpec* data) {
        data->set_source(v1::DATA_SOURCE_TOKENS);
        data->add_path(dir / "tokens.bin");
        data->set_separator("999");
        data->set_val_fraction(0.2);
      },
      1000);
  jobs["tokens of a large vocabulary"] = JobOn(
      [&](v1::DataSpec* data) {
        data->set_source(v1::DATA_SOURCE_TOKENS);
        data->add_path(dir / "wide.bin");
        data->set_separator("999");
        data->set_val_fraction(0.2);
      },
      150000);
  jobs["tokens without separator"] = JobOn(
      [&](v1::DataSpec* data) {
        data->set_source(v1::DATA_SOURCE_TOKENS);
        data->add_path(dir / "many.bin");
        data->set_separator("none");
        data->set_val_fraction(0.4);
      },
      1000);
}

inline v1::JobSpec JobOnAMixture(const TempDir& dir) {
  return JobOn([&](v1::DataSpec* data) {
    AddMix(data, "lines", v1::DATA_SOURCE_JSONL, dir / "train.jsonl", 5);
    AddMix(data, "body", v1::DATA_SOURCE_JSONL, dir / "body.jsonl.zst", 3);
    data->mutable_mix(1)->set_text_field("body");
    AddMix(data, "rows", v1::DATA_SOURCE_PARQUET, dir / "rows.parquet", 2);
    data->add_val_path(dir / "val.jsonl");
    data->add_val_path(dir / "b.txt");
    (*data->mutable_val())["long"] = dir / "a.txt";
    data->set_document_mask(true);
  });
}

// A job of each source, with each way of validation, by name. The files are in `dir`.
inline JobsByName JobsOfEverySource(const TempDir& dir) {
  WriteFilesOfEverySource(dir);
  JobsByName jobs;
  AddJobsOnLines(dir, &jobs);
  AddJobsOnTokens(dir, &jobs);
  jobs["mixture"] = JobOnAMixture(dir);
  return jobs;
}

// Prepares the data of a job into `out`, in shards of few documents.
inline absl::StatusOr<v1::PreparedData> PrepareInto(const std::filesystem::path& out,
                                                    const v1::JobSpec& spec) {
  ReadProgress progress;
  return PrepareData({.spec = spec, .out = out, .shard_bytes = 1 << 20, .shard_documents = 17},
                     &progress);
}

// The job with its defaults, as a worker gets it.
inline v1::JobSpec Full(v1::JobSpec spec) {
  ApplyDefaults(&spec);
  return spec;
}

}  // namespace nsa::train
