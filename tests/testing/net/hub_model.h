// A model of the Hugging Face Hub, for tests: what the Hub answers for it (DataServer::Handler).
#pragma once

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/job/data/sha256.h"
#include "nlohmann/json.hpp"
#include "tests/testing/net/data_server.h"

namespace nsa {

struct HubModel {
  std::string repository = "o/n";
  std::string commit = std::string(40, 'c');  // of every branch
  std::map<std::string, std::string> files;   // content by name
  // What the list says of files, in place of what is true.
  std::map<std::string, std::string> hashes;
  std::map<std::string, int> sizes;

  static std::string Sha256(const std::string& text) {
    Sha256Sum sum;
    sum.Add(text);
    return sum.Hex();
  }

  DataServer::Reply Answer(const DataServer::Request& request) const {
    const std::string api = absl::StrCat("/api/models/", repository);
    const std::string resolve = absl::StrCat("/", repository, "/resolve/", commit, "/");
    if (request.target.starts_with(api + "/revision/")) {
      return {.body = nlohmann::json{{"sha", commit}}.dump()};
    }
    if (request.target == absl::StrCat(api, "/tree/", commit)) return {.body = List()};
    if (!request.target.starts_with(resolve)) return {.status = 404};
    const auto file = files.find(request.target.substr(resolve.size()));
    if (file == files.end()) return {.status = 404};
    return DataServer::Serve(request, file->second, absl::StrCat("\"", Sha256(file->second), "\""));
  }

  std::string List() const {
    nlohmann::json list = nlohmann::json::array({{{"type", "directory"}, {"path", "onnx"}}});
    for (const auto& [name, content] : files) {
      nlohmann::json entry = {{"type", "file"}, {"path", name}, {"size", content.size()}};
      if (name.ends_with(".safetensors")) {
        entry["lfs"] = {{"oid", hashes.contains(name) ? hashes.at(name) : Sha256(content)}};
      }
      if (sizes.contains(name)) entry["size"] = sizes.at(name);
      list.push_back(std::move(entry));
    }
    return list.dump();
  }
};

}  // namespace nsa
