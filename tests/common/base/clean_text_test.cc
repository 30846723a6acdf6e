// What is shown of text from outside.
#include "common/base/clean_text.h"

#include <gtest/gtest.h>

namespace nsa {
namespace {

TEST(CleanText, LeavesOrdinaryTextAsItIs) {
  for (const char* text :
       {"", "loss 1.5, lr 3e-4", "Grüße, 世界 🙂", "two\nlines\tand a tab"}) {
    EXPECT_EQ(CleanText(text), text);
  }
}

TEST(CleanText, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(CleanText("\x1b[31mred\x1b[0m"), "\\x1b[31mred\\x1b[0m");
  EXPECT_EQ(CleanText("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(CleanText("b\bc\x7f"), "b\\x08c\\x7f");
  EXPECT_EQ(CleanText(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(CleanText("\xc2\x9b"
                      "31m"),
            "\\x9b31m")
      << "CSI of C1";
  EXPECT_EQ(CleanText("\xe2\x80\xae"
                      "cba"),
            "\\u202ecba")
      << "written backwards";
}

TEST(CleanText, ACarriageReturnEndsALine) {
  EXPECT_EQ(CleanText("one\r\ntwo\rthree\n\r\r\n"), "one\ntwo\nthree\n\n\n");
  EXPECT_EQ(CleanText("\r"), "\n");
  EXPECT_EQ(CleanLine("one\r\ntwo\r"), "one\\r\\ntwo\\r");
}

TEST(CleanText, ShowsBytesThatAreNotUtf8) {
  EXPECT_EQ(CleanText("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(CleanText("\xc0\xaf"), "\\xc0\\xaf") << "an overlong slash";
  EXPECT_EQ(CleanText("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(CleanText("\x9b"
                      "31m"),
            "\\x9b31m")
      << "CSI as one byte";
}

TEST(CleanLine, StaysOnItsLine) { EXPECT_EQ(CleanLine("a\nb\tc"), "a\\nb\\tc"); }

TEST(CutText, CutsBetweenCharacters) {
  EXPECT_EQ(CutText("ab", 2), "ab");
  EXPECT_EQ(CutText("abc", 2), "ab…");
  EXPECT_EQ(CutText("aü", 2), "a…");
  EXPECT_EQ(CutText("a\xf0\x9f\x98\x80", 4), "a…");
  EXPECT_EQ(CutText("", 0), "");
  EXPECT_EQ(CutText("\x80\x80\x80\x80\x80\x80", 5), "\x80\x80…") << "bytes that are no text";
}

TEST(ShownJson, HasTheTextsOfCleanText) {
  EXPECT_EQ(ShownJson("{\"a\": \"\xe2\x80\xae"
                      "b\\n\"}"),
            "{\"a\": \"\\\\u202eb\\n\"}");
}

TEST(CleanJson, StaysTheSameDocument) {
  EXPECT_EQ(CleanJson("{\n \"a\": \"\xc2\x9b\"}"), "{\n \"a\": \"\\u009b\"}");
}

}  // namespace
}  // namespace nsa
