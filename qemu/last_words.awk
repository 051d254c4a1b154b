# SPDX-License-Identifier: GPL-2.0
#
# last_words.awk: of the first three failures in failed.log (test.sh), what it is and the five lines before the counters and the name of the
# artefacts: what a test printed last says most about its failure.
function end_of_output(	i) {
	for (i = (count > 5 ? count - 4 : 1); i <= count; i++)
		print lines[i]
	count = 0
}
!/^[^:]*: *#/ {
	end_of_output()
	collect = ++failures <= 3
	if (collect)
		print
	next
}
/^[^:]*: # (counters in the machine of|artefacts:|[0-9]+ passed,)/ { collect = 0 }
collect { lines[++count] = $0 }
END { end_of_output() }
