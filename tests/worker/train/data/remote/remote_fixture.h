// What tests of remote files share.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/net/data_server.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/data/read/data_file.h"
#include "worker/train/data/remote/remote.h"

namespace nsa::train {

// Any address, small blocks, short pauses, no cache. Patience is long: a test whose server is to be
// given up on, or asked again because it stalls, sets its own, and none fails because this machine
// has much to do.
inline RemoteOptions QuickOptions() {
  unsetenv("http_proxy");  // which would be asked for everything
  RemoteOptions options;
  options.policy = *UrlPolicy::Make({"*"});
  options.patience = absl::Minutes(2);
  options.stall = absl::Minutes(1);
  options.first_pause = absl::Milliseconds(1);
  options.longest_pause = absl::Milliseconds(20);
  options.block_bytes = 1000;
  return options;
}

// No two stretches of it are alike.
inline std::string Content(size_t size) {
  std::string content;
  for (int i = 0; content.size() < size; ++i) content += absl::StrCat(i, " ");
  content.resize(size);
  return content;
}

// Opens a file and reads all of it.
inline absl::StatusOr<std::string> ReadAll(const std::string& url, RemoteOptions options) {
  ReadProgress progress;
  progress.remote = std::make_shared<Remote>(std::move(options));
  auto file = DataFile::Open(url, &progress);
  if (!file.ok()) return file.status();
  file->ExpectUpTo(file->size());
  std::string content(static_cast<size_t>(file->size()), '\0');
  if (auto status = file->ReadAt(0, content); !status.ok()) return status;
  return content;
}

}  // namespace nsa::train
