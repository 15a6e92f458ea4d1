# Reads what `go test` of several packages has printed. Prints of each failed package the failed
# tests, each with its last 40 lines, and the command that runs them again; without a failed
# package the last 40 lines of all.
#
#	awk -v step=race -f scripts/failed.awk LOG

# tail prints the last 40 of the lines from first to last.
function tail(first, last,    i) {
	for (i = (last - first >= 40 ? last - 39 : first); i <= last; i++) print line[i]
}

{ line[NR] = $0 }

# A test begins its report by "--- FAIL: TestName (1.00s)"; a time-out lists the tests that ran.
/^--- FAIL: / { name[++tests] = $3; at[tests] = NR }
/^panic: test timed out/ { timed = NR }
timed && /^\t+Test[^ ]* \([0-9.a-z]+\)$/ { name[++tests] = $1; at[tests] = timed; timed = NR }

/^(ok  |\?   )\t/ { begin = NR + 1; tests = 0; timed = 0 }

/^FAIL\t/ {
	failed++
	print ""
	print $2
	names = ""
	for (i = 1; i <= tests; i++) {
		names = names (i > 1 ? "|" : "") name[i]
		end = NR
		for (j = i + 1; j <= tests; j++) if (at[j] > at[i]) { end = at[j] - 1; break }
		print ""
		tail(at[i], end)
	}
	if (!tests) tail(begin ? begin : 1, NR)
	dir = $2
	sub(/^github\.com\/fre-engine\/fre/, ".", dir)
	print ""
	print "again: FRE_TEST_ROOT=1 go test -count=1" (step == "race" ? " -race" : "") (names ? " -run '^(" names ")$'" : "") " " dir
	begin = NR + 1
	tests = 0
	timed = 0
}

END { if (!failed) tail(1, NR) }
