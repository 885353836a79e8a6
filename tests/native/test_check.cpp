// SPDX-License-Identifier: Apache-2.0
// The test frame itself: it must reject what is false, and say where. Uses no CHECK to judge CHECK.
#include "check.hpp"

#include <cstdio>
#include <stdexcept>
#include <string>

namespace {

using hccl_py::testing::Failure;
using hccl_py::testing::run_tests;

int problems = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("FAILED %s\n", what);
  ++problems;
}

template <class Body>
std::string failure_of(Body body) {
  try {
    body();
  } catch (const Failure& failure) {
    return failure.text;
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

int main() {
  expect(failure_of([] { CHECK(1 + 1 == 2); }).empty(), "CHECK lets pass what is true");
  expect(failure_of([] { CHECK_EQ(2u, 2u); }).empty(), "CHECK_EQ lets pass what is equal");

  const int line = __LINE__ + 1;
  const std::string text = failure_of([] { CHECK(1 + 1 == 3); });
  expect(contains(text, "test_check.cpp:" + std::to_string(line)), "CHECK names file and line");
  expect(contains(text, "1 + 1 == 3"), "CHECK names the condition");
  const std::string unequal = failure_of([] { CHECK_EQ(7, 8); });
  expect(contains(unequal, "7 != 8"), "CHECK_EQ prints both sides");

  std::printf("Two of the next four lines must say FAILED:\n");
  expect(run_tests({{"passes", [] { CHECK(true); }}}) == 0, "run_tests counts no failure where there is none");
  expect(run_tests({{"fails", [] { CHECK(false); }},
                    {"throws", [] { throw std::runtime_error("as wanted"); }},
                    {"passes", [] {}}}) == 2,
         "run_tests counts failures and errors and goes on after them");
  return problems == 0 ? 0 : 1;
}
