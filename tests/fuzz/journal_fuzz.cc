// Any bytes as a worker's journal, and any records in whole frames: the agent reads it while the
// worker writes it. Reading goes on from any offset that was returned, with the same result.
#include <xxhash.h>

#include <vector>

#include "common/run/journal.h"
#include "tests/fuzz/fuzz.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace {

std::string Number(uint32_t number) {
  std::string bytes(4, '\0');
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}

// Payloads in frames with the right length and checksum.
std::string Framed(Input* input) {
  std::string journal;
  while (!input->empty()) {
    const std::string_view payload = input->Text();
    journal += Number(static_cast<uint32_t>(payload.size()));
    journal += Number(static_cast<uint32_t>(XXH3_64bits(payload.data(), payload.size())));
    journal += payload;
  }
  return journal;
}

// The records from `offset` on, and the end of each.
std::vector<std::pair<std::string, int64_t>> ReadFrom(const std::filesystem::path& path,
                                                      int64_t offset) {
  nsa::JournalReader reader(path, offset);
  std::vector<std::pair<std::string, int64_t>> records;
  while (true) {
    const auto next = reader.Next();
    RequireRefusal(next.status());
    if (!next.ok() || !next->has_value()) return records;
    Require(reader.offset() > (records.empty() ? offset : records.back().second),
            "a record without length");
    records.emplace_back((*next)->SerializeAsString(), reader.offset());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const bool framed = input.Byte() % 2 == 1;
  const auto path = nsa::fuzz::File("journal", framed ? Framed(&input) : std::string(input.Rest()));
  const auto records = ReadFrom(path, 0);
  if (records.size() < 2) return 0;
  const auto rest = ReadFrom(path, records[0].second);
  Require(std::vector(records.begin() + 1, records.end()) == rest,
          "other records when reading goes on later");
  return 0;
}
