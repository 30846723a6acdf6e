#include "worker/train/telemetry/tensorboard.h"

#include <cstring>
#include <fstream>
#include <string>

#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/telemetry/crc32c.h"

namespace nsa::train {
namespace {

TEST(Crc32c, HasTheValuesOfTheStandard) {
  // Values of RFC 3720, appendix B.4, and the usual check value.
  std::string ascending(32, '\0');
  for (int i = 0; i < 32; ++i) ascending[i] = static_cast<char>(i);
  for (const auto crc : {&Crc32c, &Crc32cByTable}) {
    EXPECT_EQ(crc("123456789"), 0xe3069283u);
    EXPECT_EQ(crc(std::string(32, '\0')), 0x8a9136aau);
    EXPECT_EQ(crc(std::string(32, '\xff')), 0x62a8ab43u);
    EXPECT_EQ(crc(ascending), 0x46dd794eu);
    EXPECT_EQ(crc(""), 0u);
  }
}

TEST(Crc32c, TableAndInstructionAgreeForEveryLength) {
  std::string text;
  for (int i = 0; i < 70; ++i) {
    EXPECT_EQ(Crc32c(text), Crc32cByTable(text)) << i;
    text += static_cast<char>(i * 37 + 5);
  }
}

// Reads a varint or fixed field at `at`, by the protobuf wire format, independently of the writer.
uint64_t Varint(const std::string& bytes, size_t* at) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[(*at)++]);
    value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return value;
  }
}

struct Event {
  double wall_time = 0;
  uint64_t step = 0;
  std::string version;
  std::vector<std::pair<std::string, float>> scalars;
};

Event Decode(const std::string& bytes) {
  Event event;
  for (size_t at = 0; at < bytes.size();) {
    const uint64_t tag = Varint(bytes, &at);
    if (tag == 9) {
      std::memcpy(&event.wall_time, &bytes[at], 8);
      at += 8;
    } else if (tag == 16) {
      event.step = Varint(bytes, &at);
    } else {
      const uint64_t length = Varint(bytes, &at);
      const std::string content = bytes.substr(at, length);
      at += length;
      if (tag == 26) event.version = content;
      for (size_t v = 0; tag == 42 && v < content.size();) {
        EXPECT_EQ(Varint(content, &v), 10u);
        const uint64_t value_length = Varint(content, &v);
        const size_t end = v + value_length;
        EXPECT_EQ(Varint(content, &v), 10u);
        const uint64_t name_length = Varint(content, &v);
        const std::string name = content.substr(v, name_length);
        v += name_length;
        EXPECT_EQ(Varint(content, &v), 21u);
        float value = 0;
        std::memcpy(&value, &content[v], 4);
        event.scalars.emplace_back(name, value);
        v += 4;
        EXPECT_EQ(v, end);
      }
    }
  }
  return event;
}

std::vector<Event> ReadEvents(const std::filesystem::path& path) {
  const std::string bytes = *ReadWholeFile(path);
  std::vector<Event> events;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, &bytes[at], 8);
    std::memcpy(&crc, &bytes[at + 8], 4);
    EXPECT_EQ(crc, MaskedCrc32c(bytes.substr(at, 8)));
    const std::string event = bytes.substr(at + 12, length);
    std::memcpy(&crc, &bytes[at + 12 + length], 4);
    EXPECT_EQ(crc, MaskedCrc32c(event));
    events.push_back(Decode(event));
    at += 16 + length;
  }
  return events;
}

TEST(TensorBoardFile, HoldsAVersionAndOneEventAStep) {
  const TempDir dir;
  {
    auto file = TensorBoardFile::Open(*Folder::Make(dir / "tb"), 0, 1000.5);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Add(1001.25, 20, {{"train/loss", 2.5}, {"train/lr", 1e-3}}));
    ASSERT_OK((*file)->Add(1002, 300, {{"val/loss", 2.25}}));
  }
  const auto events = ReadEvents(dir / "tb/events.out.tfevents.nsa");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[0].wall_time, 1000.5);
  EXPECT_EQ(events[1].step, 20u);
  EXPECT_EQ(events[1].wall_time, 1001.25);
  EXPECT_THAT(events[1].scalars, testing::ElementsAre(testing::Pair("train/loss", 2.5f),
                                                      testing::Pair("train/lr", 1e-3f)));
  EXPECT_EQ(events[2].step, 300u);
}

TEST(TensorBoardFile, AResumedRunRemovesLaterStepsAndATornEnd) {
  const TempDir dir;
  const auto path = dir / "tb/events.out.tfevents.nsa";
  {
    auto file = TensorBoardFile::Open(*Folder::Make(dir / "tb"), 0, 1);
    for (const int64_t step : {10, 20, 30}) ASSERT_OK((*file)->Add(1, step, {{"x", 1}}));
  }
  ASSERT_OK(TensorBoardFile::Open(*Folder::Make(dir / "tb"), 20, 1));
  EXPECT_EQ(ReadEvents(path).size(), 3u);  // version, 10, 20
  const std::string whole = *ReadWholeFile(path);
  for (size_t cut = 1; cut < 30; ++cut) {  // killed while writing the last record
    std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() - cut);
    auto file = TensorBoardFile::Open(*Folder::Make(dir / "tb"), 1000, 1);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Add(1, 21, {{"x", 1}}));
    const auto events = ReadEvents(path);
    ASSERT_EQ(events.size(), 3u);
    EXPECT_EQ(events[1].step, 10u);
    EXPECT_EQ(events[2].step, 21u);
  }
}

}  // namespace
}  // namespace nsa::train
