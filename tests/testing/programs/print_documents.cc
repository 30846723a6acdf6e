// Reads data files as training does and prints what it read, for tests that compare it with what
// other programs wrote.
//
//   print_documents text|jsonl|parquet FIELD FILE…           each document's text as a JSON string
//   on a line print_documents --count text|jsonl|parquet FIELD FILE…   documents, nulls, bytes,
//   seconds
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "common/job/data_source.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/read/documents.h"

namespace {

nsa::v1::DataSource SourceOf(const std::string& word) {
  if (word == "parquet") return nsa::v1::DATA_SOURCE_PARQUET;
  return word == "jsonl" ? nsa::v1::DATA_SOURCE_JSONL : nsa::v1::DATA_SOURCE_TEXT;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool count = !arguments.empty() && arguments[0] == "--count";
  if (count) arguments.erase(arguments.begin());
  if (arguments.size() < 3) {
    std::cerr << "print_documents: [--count] SOURCE FIELD FILE…\n";
    return 2;
  }
  nsa::train::ReadProgress progress;
  nsa::train::DocumentReader reader({.source = SourceOf(arguments[0]),
                                     .files = {arguments.begin() + 2, arguments.end()},
                                     .text_field = arguments[1]},
                                    &progress);
  const auto begin = std::chrono::steady_clock::now();
  nsa::train::Document document;
  int64_t documents = 0, bytes = 0;
  while (true) {
    const absl::StatusOr<bool> found = reader.Next(&document);
    if (!found.ok()) {
      std::cerr << found.status().message() << "\n";
      return 1;
    }
    if (!*found) break;
    ++documents;
    bytes += static_cast<int64_t>(document.text.size());
    if (!count) std::cout << nlohmann::json(document.text).dump() << "\n";
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (count) {
    std::cout << documents << " " << reader.nulls() << " " << bytes << " " << taken.count() << "\n";
  }
  return 0;
}
